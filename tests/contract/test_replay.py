"""Record and replay of conditional generation: the real flow, from a file to its export."""

import pytest
from contract.labelled_flow import few_and_fifty, fifty, labelled_flow, replayed

SMALL = (
    "lora.rank=2",
    "discriminator.width=8",
    "train.max_length=16",
    "train.batch_size=8",
    "train.epochs=1.6",
    "train.micro_batch=20",
    "train.l2_clip_norm=0.1",
    "train.learning_rate=2e-3",
    "train.discriminator_learning_rate=2e-3",
    "generate.sampling.max_new_tokens=4",
    "selection.draws=2",
)
# Of the words of the rows and of none of them.
TOPICS = 'topics.keywords=[["film", "song"], ["river"], ["zzyzx", "quux"]]'
VARIANTS = {
    "multitask, alternating, steered": ("update=alternating", "class_sizes=as_in_data", "class_sizes_share=0.2"),
    "multitask, joint": ("update=joint",),
    "naive": ("variant=naive",),
    "naive + filter": ("variant=naive_filter", "filter.lora_rank=2", "filter.threshold=0"),
    "naive + PPLM": ("variant=naive_pplm",),
    "all weights, averaged": ("variant=naive", "lora.rank=0", "train.averaging=0.9"),
    "untrained": ("variant=untrained", "class_sizes=as_in_data"),
    "multitask, topics": (TOPICS,),
    "untrained, topics": ("variant=untrained", TOPICS),
}


ON_TWO_THREADS = {"multitask, joint", "multitask, topics", "naive + filter"}


def flow(variant, model, folder, places, patch, *settings):
    overrides = (*SMALL, *VARIANTS[variant], *settings)
    run = labelled_flow("conditional-generation", overrides, model, folder, places, patch, samples=3)
    run.threads = 2 if variant in ON_TWO_THREADS else 1
    return run


def check(variant, kind, number, *surroundings):
    # Where nothing is trained nothing is sampled, and there is no mask that a slot could be forced into.
    forced = () if "variant=untrained" in VARIANTS[variant] else "every"
    report = replayed(flow(variant, *surroundings), kind=kind, number=number, forced=forced)
    # A pair whose row moves no query would test nothing.
    assert 0.01 < (report.distance_forced if forced else report.distance_real) <= 1 + report.tolerance


# Class sizes and topics of the rows, each update of LoRA, one thread and two, averaged weights, and no training.
FEW = [
    ("multitask, alternating, steered", "rare class"),
    ("multitask, topics", "extreme"),
    ("all weights, averaged", "plain"),
    ("untrained, topics", "extreme"),
]


@pytest.mark.parametrize(("variant", "kind", "number"), few_and_fifty(FEW, fifty(list(VARIANTS))))
def test_neighbours(variant, kind, number, surroundings):
    check(variant, kind, number, *surroundings)
