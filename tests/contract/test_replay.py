"""Record and replay of conditional generation: the real flow, from a file to its export."""

import pytest
from contract.flow_under_replay import FlowRun, smaller
from contract.private_files import NAMES, ROW_KINDS, ROWS, row_of, without_row

from understudy.privacy.testing.replay import replay_check
from understudy.runs.request import Budget

SMALL = (
    "lora.rank=2",
    "discriminator.width=8",
    "train.max_length=16",
    "train.batch_size=8",
    "train.epochs=1.6",
    "train.micro_batch=20",
    "train.l2_clip_norm=0.1",
    "generate.sampling.max_new_tokens=4",
)
VARIANTS = {
    "multitask, alternating, steered": ("update=alternating", "class_sizes=as_in_data", "class_sizes_share=0.2"),
    "multitask, joint": ("update=joint",),
    "naive": ("variant=naive",),
    "naive + filter": ("variant=naive_filter", "filter.lora_rank=2", "filter.threshold=0"),
    "naive + PPLM": ("variant=naive_pplm",),
    "all weights": ("variant=naive", "lora.rank=0"),
}


def flow(variant, model, folder, places, patch, *settings):
    smaller(patch)
    options = {
        "source": "replayed",
        "epsilon": 8.0,
        "delta": 1e-3,
        "budget": Budget(epsilon=8, delta=1e-3),
        "label_names": NAMES,
        "units": ROWS,
        "model": str(model),
        "samples": 3,
        "overrides": (*SMALL, *VARIANTS[variant], *settings),
    }
    return FlowRun("conditional-generation", options, folder, places, patch)


def check(variant, kind, number, model, folder, places, patch):
    run = flow(variant, model, folder, places, patch)
    slot = run.trained_slot(number)
    report = replay_check(run, data=row_of(kind, slot), neighbour=without_row(slot), forced="every")
    assert (*report.faults, *dict.fromkeys(run.seen)) == (), f"{variant}, {kind} row in slot {slot}"
    # A pair whose row moves no query would test nothing.
    assert 0.01 < report.distance_forced <= 1 + report.tolerance


@pytest.mark.parametrize(
    ("variant", "kind"),
    [("multitask, alternating, steered", "rare class"), ("multitask, joint", "plain"), ("all weights", "extreme")],
)
def test_three_neighbours(variant, kind, random_model_folder, tmp_path, places, monkeypatch):
    check(variant, kind, 3, random_model_folder, tmp_path, places, monkeypatch)


FIFTY = [(list(VARIANTS)[i % len(VARIANTS)], ROW_KINDS[i % len(ROW_KINDS)], i // 4) for i in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "kind", "number"), FIFTY)
def test_fifty_neighbours(variant, kind, number, random_model_folder, tmp_path, places, monkeypatch):
    check(variant, kind, number, random_model_folder, tmp_path, places, monkeypatch)
