"""Record and replay of knowledge distillation: the real flow with both zones, from a file to its export."""

import json

import pytest
from contract.flow_under_replay import FlowRun, nothing_found, smaller, without_evaluation
from contract.labelled_flow import OPTIONS
from contract.private_files import PAIR_KINDS, ROWS, pair_of, pairs, without_pair
from tests_support import SMALL_DISTILLATION, write_random_model

from understudy.methods.knowledge_distillation import crossing
from understudy.methods.knowledge_distillation import train as training
from understudy.privacy import labels
from understudy.privacy.dpsgd import training as dpsgd
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.testing.replay import replay_check

SAMPLED = "all linear, sampled"
VARIANTS = {
    "attention": (),
    SAMPLED: ("lora.targets=all-linear", "train.batch_size=9", "train.epochs=1", "train.micro_batch=4"),
    "several micro-batches": ("train.micro_batch=3", "train.epochs=1"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("model") / "random", positions=128)


@pytest.fixture
def flow(model, tmp_path, places, monkeypatch):
    def make(variant="attention", *more, **fields):
        smaller(monkeypatch)
        settings = (*SMALL_DISTILLATION, f"professional.model={model}", *VARIANTS[variant], *more)
        options = {"units": ROWS, "model": str(model), "samples": 3, "overrides": settings}
        # Two threads compute a half of each micro-batch each.
        threads = 2 if variant == SAMPLED else 1
        return FlowRun("knowledge-distillation", OPTIONS | options | fields, tmp_path, places, monkeypatch, threads)

    return make


def fifty():
    names = list(VARIANTS)
    every = [(names[place % len(names)], PAIR_KINDS[place % len(PAIR_KINDS)], place // 3) for place in range(50)]
    return [pytest.param(*one, marks=pytest.mark.slow) for one in every]


@pytest.mark.parametrize(
    ("variant", "kind", "number"),
    [
        ("attention", "long response", 3),
        (SAMPLED, "end of turn", 3),
        *fifty(),
    ],
)
def test_neighbours(variant, kind, number, flow):
    run = flow(variant)
    slot = run.trained_slot(number)
    # Elsewhere every pair is in the first batch as it is.
    forced = "every" if variant == SAMPLED else ()
    report = replay_check(run, data=pair_of(kind, slot), neighbour=without_pair(slot), forced=forced)
    nothing_found(run, report, f"{kind} pair in slot {slot}")
    assert 0 < (report.distance_forced if forced else report.distance_real) <= 1 + report.tolerance


def without_clipping(patch):
    def unclipped(*args, l2_clip_norm, **options):
        return clipped(*args, l2_clip_norm=1e6 * l2_clip_norm, **options)

    clipped = dpsgd.clipped_gradient_sum
    patch.setattr(dpsgd, "clipped_gradient_sum", unclipped)


def length_in_the_statement(patch):
    """The sealed statement says how long the longest response is: unreadable on the way, but never released."""

    def fit(private, asked, **options):
        seen.append(max(len(pair.response) for pair in private.pairs if pair is not None))
        return exact(private, asked, **options)

    def telling(adapter, folder, *, facts, **options):
        send(adapter, folder, facts={**facts, "longest": seen[-1]}, **options)

    seen: list[int] = []
    exact, send = training.train_on_pairs, crossing.send
    patch.setattr(training, "train_on_pairs", fit)
    patch.setattr(crossing, "send", telling)


def rate_by_length(patch):
    """Public arithmetic by a private length: the learning rate follows the longest response."""

    def fit(private, asked, **options):
        longest = max(len(pair.response) for pair in private.pairs if pair is not None)
        config = asked.config.model_copy(
            update={"train": asked.config.train.model_copy(update={"learning_rate": 1e-4 * (1 + longest)})}
        )
        return exact(private, type(asked)(config, asked.schedule, asked.mechanisms), **options)

    exact = training.train_on_pairs
    patch.setattr(training, "train_on_pairs", fit)


# What is planted, and what is said of it; a long response shows each.
FAULTS = {
    "clip removed": (without_clipping, "times its declared sensitivity"),
    "length in the sealed statement": (length_in_the_statement, "'exchange/"),
    "rate by the longest response": (rate_by_length, "'exchange/"),
}
# The first two show in different places, so one replay finds both.
TOGETHER = (("clip removed", "length in the sealed statement"), ("rate by the longest response",))
ALONE = [pytest.param([name], marks=pytest.mark.slow) for name in TOGETHER[0]]


@pytest.mark.parametrize("names", [*TOGETHER, *ALONE], ids=" and ".join)
def test_planted_faults_are_caught(names, flow, monkeypatch):
    run = flow("attention", "train.micro_batch=20", "train.epochs=1", "train.l2_clip_norm=0.001")
    without_evaluation(monkeypatch)
    slot = run.trained_slot(3)
    for name in names:
        FAULTS[name][0](monkeypatch)
    found = run.faults(pair_of("long response", slot), without_pair(slot))
    for name in names:
        assert any(FAULTS[name][1] in one for one in found), found


def test_at_infinity_everything_stays_with_the_client(flow, monkeypatch):
    run = flow(epsilon=float("inf"))
    without_evaluation(monkeypatch)
    seen = run(pairs(), lambda material: Mechanisms(material))
    told = [name for name in seen.visible if name.startswith(("exchange", "out/export"))]
    manifests = [json.loads(seen.visible[name]) for name in told if name.endswith("manifest.json")]
    assert {one["kind"] for one in manifests} == {"prompt-only", "control-adapter"}
    assert all(one["label"] == labels.public().model_dump(mode="json") for one in manifests)
    of_them = ("table.parquet", "value.json", "adapter.safetensors", "manifest.json")
    assert [name for name in told if not name.endswith(of_them)] == [], (
        "nothing but the public model's pairs and what was tuned on them is outside of the private store"
    )
