"""Record and replay of gradient matching: the real flow, from a file to its export."""

import pytest
from contract.flow_under_replay import FlowRun, smaller
from contract.private_files import NAMES, ROW_KINDS, ROWS, row_of, without_row

from understudy.privacy.testing.replay import replay_check
from understudy.runs.request import Budget

# Two rounds for seven texts in shards and batches that do not fill up.
SMALL = (
    "public_seed=3",
    "max_length=12",
    "length=5",
    'verbalizer.words={"negative": "bad", "positive": "good", "rare": "odd"}',
    "target.kind=sketch",
    "target.sketch_dimension=64",
    "target.l2_clip_norm=0.1",
    "target.micro_batch=7",
    "matching.rounds=2",
    "matching.inner_steps=2",
    "matching.learning_rate=0.05",
    "matching.swap_sweeps=1",
    "matching.swap_width=3",
    "matching.batch_size=3",
    "matching.shard_size=5",
    "projection.k=10",
    "filter.oversample=1.5",
    "filter.label_check=false",
    "filter.keep_lowest=0.9",
)
LENGTH_AS_IN_DATA = ("length=as_in_data", "length_share=0.2")
VARIANTS = {
    "head": ("target.kind=head", "target.calibration=paper", "projection.kind=l2"),
    "label rows, length as in data": ("target.kind=label_rows", *LENGTH_AS_IN_DATA),
    "sketch": (),
    "full gradient": ("target.kind=label_rows", "matching.gradient=full", "matching.rounds=1"),
    "sketch, length as in data": LENGTH_AS_IN_DATA,
    "head, length as in data": ("target.kind=head", *LENGTH_AS_IN_DATA),
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
        "samples": 4,
        "overrides": (*SMALL, *VARIANTS[variant], *settings),
    }
    return FlowRun("gradient-matching", options, folder, places, patch)


def check(variant, kind, number, model, folder, places, patch):
    run = flow(variant, model, folder, places, patch)
    slot = run.trained_slot(number)
    report = replay_check(run, data=row_of(kind, slot), neighbour=without_row(slot))
    assert (*report.faults, *dict.fromkeys(run.seen)) == (), f"{variant}, {kind} row in slot {slot}"
    # Every row counts, so there is no mask that a slot could be forced into.
    assert 0.5 < report.distance_real <= 1 + report.tolerance


@pytest.mark.parametrize(
    ("variant", "kind"),
    [("full gradient", "plain"), ("label rows, length as in data", "extreme"), ("sketch", "rare class")],
)
def test_three_neighbours(variant, kind, random_model_folder, tmp_path, places, monkeypatch):
    check(variant, kind, 3, random_model_folder, tmp_path, places, monkeypatch)


FIFTY = [(list(VARIANTS)[i % len(VARIANTS)], ROW_KINDS[i % len(ROW_KINDS)], i // 4) for i in range(50)]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "kind", "number"), FIFTY)
def test_fifty_neighbours(variant, kind, number, random_model_folder, tmp_path, places, monkeypatch):
    check(variant, kind, number, random_model_folder, tmp_path, places, monkeypatch)
