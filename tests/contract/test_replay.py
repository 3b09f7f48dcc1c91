"""Record and replay of the whole method: outside mechanism outputs, nothing depends on a private row."""

import pytest
from contract.method_under_replay import MethodRun, changed, neighbours, small_config, unrelated

from understudy.privacy.replay import replay_check

VARIANTS = {
    "multitask, alternating": {"variant": "multitask", "update": "alternating"},
    "multitask, joint": {"variant": "multitask", "update": "joint"},
    "naive": {"variant": "naive"},
    "naive + filter": {"variant": "naive_filter", "filter": {"lora_rank": 2, "max_draws": 1}},
    "naive + PPLM": {"variant": "naive_pplm"},
    "multitask, all weights": {"variant": "multitask", "lora": {"rank": 0}},
}


def check(variant, pair, model, folder, calibrations, monkeypatch, **options):
    kind, slot, data, neighbour = pair
    run = MethodRun(small_config(model, **VARIANTS[variant]), folder, calibrations, monkeypatch)
    report = replay_check(run, data=data, neighbour=neighbour, slot=slot, **options)
    assert (*report.faults, *run.unstated) == (), f"{variant}, {kind} record in slot {slot}"
    # A pair whose record moves no query would test nothing; an empty text still has its EOS to predict.
    assert report.distance_forced > 0.01
    return report


@pytest.mark.parametrize(
    ("variant", "kind"),
    [("multitask, alternating", "plain"), ("multitask, joint", "extreme"), ("naive + filter", "rare class")],
)
def test_three_neighbours(variant, kind, random_model_folder, tmp_path, calibrations, monkeypatch):
    pair = next(p for p in neighbours([3]) if p[0] == kind)
    report = check(variant, pair, random_model_folder, tmp_path, calibrations, monkeypatch, unrelated=unrelated())
    assert report.distance_forced <= 1 + report.tolerance


FIFTY = [(list(VARIANTS)[i % len(VARIANTS)], i // 4, i % 4) for i in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "slot", "kind"), FIFTY)
def test_fifty_neighbours(variant, slot, kind, random_model_folder, tmp_path, calibrations, monkeypatch):
    pair = list(neighbours([slot]))[kind]
    check(variant, pair, random_model_folder, tmp_path, calibrations, monkeypatch)


def test_a_clip_norm_that_is_not_applied_is_caught(random_model_folder, tmp_path, calibrations, monkeypatch):
    from understudy.privacy import dpsgd

    exact = dpsgd.clipped_gradient_sum

    def unclipped(*args, l2_clip_norm, **kwargs):
        return exact(*args, l2_clip_norm=1e3, **kwargs)

    monkeypatch.setattr(dpsgd, "clipped_gradient_sum", unclipped)
    run = MethodRun(small_config(random_model_folder), tmp_path, calibrations, monkeypatch)
    faults = run.faults(changed(3, "zzyzx " * 200, 0), changed(3, None, None), slot=3)
    assert any("declared sensitivity" in fault for fault in faults)


def test_a_dropped_null_row_is_caught(random_model_folder, tmp_path, calibrations, monkeypatch):
    from understudy.tasks import conditional_generation as tasks

    exact = tasks.read_table
    monkeypatch.setattr(tasks, "read_table", lambda ref: exact(ref).drop_null())
    run = MethodRun(small_config(random_model_folder), tmp_path, calibrations, monkeypatch)
    faults = run.faults(changed(3, "a text", 0), changed(3, None, None), slot=3)
    assert any("differs" in fault or "ended with" in fault for fault in faults)
