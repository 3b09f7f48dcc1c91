"""Record and replay of gradient matching: the real flow, from a file to its export."""

import pytest
from contract.labelled_flow import few_and_fifty, fifty, labelled_flow, replayed

# Two rounds for seven texts in shards and batches that do not fill up.
SMALL = (
    "public_seed=3",
    "max_length=12",
    "length=5",
    'verbalizer.words={"negative": "bad", "positive": "good", "rare": "odd"}',
    'verbalizer.template=" It was"',
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
    overrides = (*SMALL, *VARIANTS[variant], *settings)
    return labelled_flow("gradient-matching", overrides, model, folder, places, patch, samples=4)


def check(variant, kind, number, *surroundings):
    report = replayed(flow(variant, *surroundings), kind=kind, number=number)
    # Every row counts, so there is no mask that a slot could be forced into.
    assert 0.5 < report.distance_real <= 1 + report.tolerance


FEW = [("full gradient", "plain"), ("label rows, length as in data", "extreme"), ("sketch", "rare class")]


@pytest.mark.parametrize(("variant", "kind", "number"), few_and_fifty(FEW, fifty(list(VARIANTS))))
def test_neighbours(variant, kind, number, surroundings):
    check(variant, kind, number, *surroundings)
