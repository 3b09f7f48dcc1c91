"""Record and replay of gradient matching: from stored rows to the export, nothing but two sums meets a private row."""

import json

import pytest
from contract.method_under_replay import (
    BASE_LABELS,
    BASE_TEXTS,
    LABEL_NAMES,
    MethodRun,
    neighbours,
    small_matching,
    unrelated,
)
from contract.stated_calls import pooled

from understudy.gradient_matching.config import GradientMatchingConfig
from understudy.gradient_matching.plan import plan
from understudy.gradient_matching.planning import charged_settings
from understudy.gradient_matching.release import release_target
from understudy.models.loading import load_model
from understudy.privacy.ledger_records import KeyMaterial
from understudy.privacy.mechanisms import Gateway
from understudy.privacy.replay import Recording, replay_check
from understudy.privacy.replay_statistics import noise_faults

LENGTH_AS_IN_DATA = {"length": "as_in_data", "length_share": 0.2}
SHOWN = {"negative": ("a dull one",), "positive": ("a bright one",)}
VARIANTS = {
    "head": {"target": {"kind": "head", "calibration": "paper"}, "projection": {"kind": "l2"}},
    "label rows, length as in data": {"target": {"kind": "label_rows"}, **LENGTH_AS_IN_DATA},
    "sketch": {"filter": {"label_check": True, "examples": SHOWN}},
    "full gradient": {"target": {"kind": "label_rows"}, "matching": {"gradient": "full", "rounds": 1}},
    "sketch, length as in data": LENGTH_AS_IN_DATA,
    "head, length as in data": {"target": {"kind": "head"}, **LENGTH_AS_IN_DATA},
}
KINDS = ("plain", "extreme", "empty", "rare class", "all long")


def check(variant, pair, model, folder, calibrations, monkeypatch, **options):
    kind, slot, data, neighbour = pair
    run = MethodRun(small_matching(model, **VARIANTS[variant]), folder, calibrations, monkeypatch)
    report = replay_check(run, data=data, neighbour=neighbour, slot=slot, **options)
    assert (*report.faults, *run.unstated) == (), f"{variant}, {kind} record in slot {slot}"
    # Every row counts, so there is no mask that a slot could be forced into.
    assert 0.5 < report.distance_real == report.distance_forced <= 1 + report.tolerance


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        ("full gradient", "plain"),
        ("label rows, length as in data", "extreme"),
        ("sketch", "rare class"),
        ("head", "all long"),
    ],
)
def test_a_neighbour_of_each_kind(variant, kind, random_model_folder, tmp_path, calibrations, monkeypatch):
    pair = next(p for p in neighbours([3]) if p[0] == kind)
    far = {} if kind == "all long" else {"unrelated": unrelated()}
    check(variant, pair, random_model_folder, tmp_path, calibrations, monkeypatch, **far)


FIFTY = [(list(VARIANTS)[i % len(VARIANTS)], i // 4, KINDS[i % len(KINDS)]) for i in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "slot", "kind"), FIFTY)
def test_fifty_neighbours(variant, slot, kind, random_model_folder, tmp_path, calibrations, monkeypatch):
    pair = next(p for p in neighbours([slot]) if p[0] == kind)
    check(variant, pair, random_model_folder, tmp_path, calibrations, monkeypatch)


def test_what_is_compared_is_everything_and_follows_the_released_target(
    random_model_folder, tmp_path, calibrations, monkeypatch
):
    config = small_matching(random_model_folder, **VARIANTS["sketch, length as in data"])
    run = MethodRun(config, tmp_path, calibrations, monkeypatch)
    recording = Recording()
    seen = run((BASE_TEXTS, BASE_LABELS), lambda material: Gateway(material, recorder=recording))
    other = run((BASE_TEXTS, BASE_LABELS), lambda material: Gateway(KeyMaterial(b"o" * 32, "other", material.salt)))
    stored = [json.loads(text) for name, text in seen.visible.items() if name.endswith("manifest.json")]
    # Seven texts in shards of five, then their selection.
    assert sorted(one["kind"] for one in stored) == ["matched", "matched", "synthetic", "target"]
    files = {name.rpartition("/")[2] for name in seen.visible}
    assert {"target.safetensors", "target.json", "table.parquet", "value.json", "statement.json"} <= files
    progress = seen.visible["progress"].decode().splitlines()
    assert progress[:4] == [f"release-target {done} of 24" for done in (7, 14, 21, 24)]
    # Two rounds, then two sweeps at once, per batch.
    steps = [*((done, 8) for done in (1, 2, 4, 5, 6, 8)), *((done, 4) for done in (1, 2, 4))]
    assert progress[4:] == [f"match {done} of {total}" for done, total in steps]
    settings = json.loads(seen.visible["out/export/target/target.json"])["settings"]
    assert GradientMatchingConfig.model_validate(settings) == charged_settings(config) != config
    assert [call.mechanism.purpose for call in recording.calls] == ["target", "length"]
    # A text that does not depend on the target could not show what the target let through.
    for name in ("out/export/target/target.safetensors", "out/export/synthetic.parquet"):
        assert seen.visible[name] != other.visible[name]


def test_both_queries_get_noise_of_the_stated_scale_and_no_other_would_pass(random_model_folder):
    """The length is two numbers, so its noise is judged over many charges."""
    base = load_model(random_model_folder)
    config = charged_settings(small_matching(random_model_folder, **VARIANTS["sketch, length as in data"]))
    planned = plan(config, n=4, epsilon=8.0, delta=1e-3)
    calls = []
    for number in range(120):
        recording = Recording()
        gateway = Gateway(KeyMaterial(b"s" * 32, f"charge-{number}", b"t" * 32), recorder=recording)
        release_target(
            BASE_TEXTS[:4],
            BASE_LABELS[:4],
            label_names=LABEL_NAMES,
            config=config,
            plan=planned,
            gateway=gateway,
            base=base,
        )
        calls += recording.calls
    stated = {"target": planned.noise_multiplier * 0.1, "length": planned.length_noise_multiplier * 2**0.5}
    for purpose, scale in stated.items():
        own = [call for call in calls if call.mechanism.purpose == purpose]
        assert own[0].mechanism.scale == pytest.approx(scale)
        assert noise_faults([pooled(own, 1.0)], significance=1e-6, noiseless=False) == []
        for factor in (2 / 3, 3 / 2):
            faults = noise_faults([pooled(own, factor)], significance=1e-6, noiseless=False)
            assert any("times what was declared" in fault for fault in faults), f"{purpose}, {factor:.2f}"
