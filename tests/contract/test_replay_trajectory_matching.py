"""Record and replay of trajectory matching with an epsilon: the real flow, from a file of pairs to its export."""

import pyarrow as pa
import pytest
from contract.flow_under_replay import FlowRun, nothing_found, smaller, without_evaluation
from contract.labelled_flow import OPTIONS, few_and_fifty
from contract.private_files import ROWS
from prefect.task_runners import ThreadPoolTaskRunner

from understudy.evaluation.metrics import Metrics
from understudy.flows import trajectory_matching as flows
from understudy.methods.trajectory_matching import distil, evaluation, experts
from understudy.privacy.dpsgd import training as dp_training
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.testing.replay import replay_check
from understudy.tasks import trajectory_matching as tasks

SMALL = (
    "max_length=56",
    "experts.epochs=1",
    "experts.batch_size=7",
    "experts.micro_batch=3",
    "experts.lora_rank=2",
    "experts.l2_clip_norm=0.05",
    "distil.max_start=1",
    "distil.steps=2",
    "distil.inner_steps=2",
    "distil.batch_size=2",
)
VARIANTS = {
    "two experts": ("experts.count=2", "carrier=public", "experts.micro_batch=4"),
    "less": (
        "experts.count=2",
        "carrier=public",
        "selection.strategy=less",
        "selection.model=tiny-gpt2",
        "selection.projection=16",
        "selection.validation=2",
        "selection.warmup_epochs=1",
    ),
    "written": ("experts.count=1", "carrier=written", "selection.strategy=dsir", "selection.buckets=64"),
}
# Two threads compute a half of each micro-batch each.
ON_TWO_THREADS = {"two experts", "less"}
KINDS = ("plain", "extreme", "special", "long response")


def pairs(slot=None, instruction=None, response=None):
    """Pairs, of which one may be changed or be the null record."""
    asked = [f"what about number {i} and {'more ' * (i % 4)}" for i in range(ROWS)]
    said = [f"number {i} is {'even' if i % 2 else 'odd'}" for i in range(ROWS)]
    if slot is not None:
        asked[slot], said[slot] = instruction, response
    return pa.table({"instruction": pa.array(asked, pa.string()), "response": pa.array(said, pa.string())})


def pair_of(kind, slot):
    """A file whose pair in the slot is of some kind."""
    return {
        "plain": lambda: pairs(),
        "extreme": lambda: pairs(slot, "zzyzx " * 200, "quux"),
        "special": lambda: pairs(slot, "<|endoftext|> <pad>", "<|endoftext|>"),
        "long response": lambda: pairs(slot, "a", "quux " * 300),
    }[kind]()


def public_pairs():
    """Six public pairs."""
    asked, said = ([f"{what} {i}" for i in range(6)] for what in ("a public question", "answer"))
    return pa.table({"instruction": asked, "response": said})


@pytest.fixture
def carriers(tmp_path_factory):
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("public") / "pairs.parquet"
    pq.write_table(public_pairs(), path)
    return path


def flow(variant, carriers, model, folder, places, patch, *settings):
    smaller(patch)
    # Experts side by side ask in any order; a replay answers in the recorded one.
    patch.setattr(flows.trajectory_matching, "task_runner", ThreadPoolTaskRunner(max_workers=1))
    # What is measured on private rows is internal; that it stays so is a matter of labels.
    patch.setattr(evaluation, "evaluate_tuning", lambda *_, **__: Metrics())
    overrides = (*SMALL, *VARIANTS[variant], f"carriers={carriers}", *settings)
    options = {"units": ROWS, "model": str(model), "samples": 3, "overrides": overrides}
    threads = 2 if variant in ON_TWO_THREADS else 1
    return FlowRun("trajectory-matching", OPTIONS | options, folder, places, patch, threads)


FIFTY = [(list(VARIANTS)[n % 3], KINDS[n % 4], n // 4) for n in range(50)]
# Both ways to choose rows, both carriers, one expert and two; `less` is `two experts` with another choice of rows.
FEW = [("less", "extreme"), ("written", "special")]


@pytest.mark.parametrize(("variant", "kind", "number"), few_and_fifty(FEW, FIFTY))
def test_neighbours(variant, kind, number, carriers, surroundings):
    run = flow(variant, carriers, *surroundings)
    slot = run.trained_slot(number)
    report = replay_check(run, data=pair_of(kind, slot), neighbour=pairs(slot), forced=[slot])
    nothing_found(run, report, f"{variant}, {kind} pair in slot {slot}")
    assert 0.3 < report.distance_forced <= 1 + report.tolerance


def clip_removed(patch):
    exact = dp_training.clipped_gradient_sum
    patch.setattr(
        dp_training,
        "clipped_gradient_sum",
        lambda *args, l2_clip_norm, **options: exact(*args, l2_clip_norm=1e3, **options),
    )


def noise_not_used(patch):
    from understudy.privacy.grid import grid_of
    from understudy.privacy.grid_sum import from_steps

    exact = Mechanisms.gaussian_sum

    def unused(self, query, *, sensitivity, **options):
        exact(self, query, sensitivity=sensitivity, **options)
        return {name: from_steps(value, grid=grid_of(sensitivity)) for name, value in query.items()}

    patch.setattr(Mechanisms, "gaussian_sum", unused)


def null_row_dropped(patch):
    exact = tasks.read_table
    patch.setattr(tasks, "read_table", lambda ref: exact(ref).drop_null() if ref.kind == "rows" else exact(ref))


def real_rows_as_carriers(patch):
    """A pseudo token is learnt on a private row."""
    exact, seen = experts.train_private_expert, []

    def noting(student, rows, *args, **options):
        seen.append(rows)
        return exact(student, rows, *args, **options)

    def mixed(student, rows, *args, **options):
        # Before anything private is read, a step is tried on made-up rows.
        for private in seen[-1:]:
            for name in ("input_ids", "attention_mask", "loss_mask"):
                getattr(rows, name)[0] = getattr(private, name)[SLOT[0]]
        return plain(student, rows, *args, **options)

    plain = distil.distil
    patch.setattr(experts, "train_private_expert", noting)
    patch.setattr(distil, "distil", mixed)


SLOT: list[int] = []


# What is said of each; the clip's, which shows in a query, and a row's as a carrier, in what leaves, in one replay.
SAID = {
    clip_removed: "times its declared sensitivity",
    real_rows_as_carriers: "synthetic.parquet' differs",
    noise_not_used: "synthetic.parquet' differs",
    null_row_dropped: f"of n={ROWS} rows",
}
TOGETHER = ((clip_removed, real_rows_as_carriers), (noise_not_used,), (null_row_dropped,))
ALONE = [pytest.param([plant], marks=pytest.mark.slow) for plant in TOGETHER[0]]


@pytest.mark.parametrize(
    "plants", [*TOGETHER, *ALONE], ids=lambda plants: " and ".join(plant.__name__ for plant in plants)
)
def test_planted_faults_are_found(plants, carriers, surroundings):
    # A clip shows where the row is in every batch.
    run = flow("two experts", carriers, *surroundings, f"experts.batch_size={ROWS}")
    without_evaluation(surroundings[-1])
    SLOT[:] = [run.trained_slot(3)]
    for plant in plants:
        plant(surroundings[-1])
    found = run.faults(pair_of("extreme", SLOT[0]), pairs(SLOT[0]))
    for plant in plants:
        assert any(SAID[plant] in one for one in found), found
