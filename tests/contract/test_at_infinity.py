"""At epsilon inf what a method makes is as private as the rows: nothing outside of private folders tells files apart.

The real flow of each method on two files: what MLflow and Prefect keep, the number of tasks, logs, progress and the
files that are not private are the same for both.
"""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract import (
    test_replay,
    test_replay_gradient_matching,
    test_replay_preference_optimization,
    test_replay_trajectory_matching,
)
from contract.flow_under_replay import FlowRun, smaller, without_evaluation
from contract.labelled_flow import OPTIONS
from contract.private_files import ROWS, clients, labelled, pairs, unrelated_clients, unrelated_rows
from prefect.task_runners import ThreadPoolTaskRunner
from tests_support import SMALL_DISTILLATION, write_random_model

from understudy.evaluation.metrics import Metrics
from understudy.flows import gradient_matching as flows
from understudy.methods.gradient_matching import optimise
from understudy.methods.trajectory_matching import evaluation
from understudy.privacy.mechanisms import Mechanisms


def unrelated_pairs():
    """As many pairs with wholly different content."""
    asked, said = ([f"quux {'plugh ' * (i % size)}" for i in range(ROWS)] for size in (7, 3))
    return pa.table({"instruction": asked, "response": said})


def seen(run, rows, *, epsilon=math.inf):
    """What is to be seen of a run from outside of private folders: name -> content."""
    run.options["epsilon"] = epsilon
    visible = run(rows, lambda material: Mechanisms(material)).visible
    assert run.seen == []
    assert {"tracking params", "prefect tasks", "progress"} <= visible.keys()
    return visible


def differing(one, other):
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def test_how_many_texts_a_label_lacks_is_in_no_parameter_and_in_no_number_of_tasks(surroundings, monkeypatch):
    """The label check drops more texts of one file than of the other, so their further waves differ."""
    sizes: list[int] = []
    exact = optimise.match_shard

    def counted(*args, examples, **options):
        sizes.append(len(examples))
        return exact(*args, examples=examples, **options)

    monkeypatch.setattr(optimise, "match_shard", counted)
    # Ids of private artifacts are numbered, and shards side by side end in any order.
    monkeypatch.setattr(flows.gradient_matching, "task_runner", ThreadPoolTaskRunner(max_workers=1))
    run = test_replay_gradient_matching.flow("sketch", *surroundings, "filter.label_check=true")
    one = seen(run, labelled())
    matched = sorted(sizes)
    sizes.clear()
    other = seen(run, unrelated_rows())
    assert matched != sorted(sizes), "otherwise there is nothing to be told"
    assert differing(one, other) == set()


def of_conditional_generation(*surroundings):
    return test_replay.flow("naive + filter", *surroundings, "filter.threshold=0.5"), labelled(), unrelated_rows()


def of_preference_optimization(*surroundings):
    return test_replay_preference_optimization.flow("federated", *surroundings), clients(), unrelated_clients()


def of_knowledge_distillation(_, folder, places, patch):
    smaller(patch)
    model = write_random_model(folder / "wide", positions=128)
    settings = (*SMALL_DISTILLATION, f"professional.model={model}", "filters.judge=professional")
    options = OPTIONS | {"units": ROWS, "model": str(model), "samples": 3, "overrides": settings}
    return FlowRun("knowledge-distillation", options, folder, places, patch), pairs(), unrelated_pairs()


def of_trajectory_matching(model, folder, places, patch):
    pq.write_table(test_replay_trajectory_matching.public_pairs(), folder / "carriers.parquet")
    run = test_replay_trajectory_matching.flow("two experts", folder / "carriers.parquet", model, folder, places, patch)
    return run, pairs(), unrelated_pairs()


@pytest.mark.parametrize(
    ("method", "silent"),
    [
        (of_conditional_generation, {"generate": 0}),
        (of_preference_optimization, {"prefer": 0, "write-texts": 1}),
        (of_knowledge_distillation, {"write-pairs": 2, "improve": 0}),
        (of_trajectory_matching, {}),
    ],
)
def test_two_files_look_the_same(method, silent, surroundings, monkeypatch):
    """What is made of private texts tells of no progress: their number decides how much there is to do.

    `silent` has the lines of the tasks that also work on what is public.
    """
    run, *files = method(*surroundings)
    without_evaluation(monkeypatch)
    one, other = (seen(run, rows) for rows in files)
    assert differing(one, other) == set()
    told = [line.split()[0] for line in one["progress"].decode().splitlines()]
    assert {name: told.count(name) for name in silent} == silent


def test_without_an_epsilon_progress_does_not_tell_how_many_pairs_there_are(surroundings, monkeypatch):
    """Experts, and the scores by which real rows are selected, take more steps with more pairs that are not null."""
    smaller(monkeypatch)
    without_evaluation(monkeypatch)
    monkeypatch.setattr(evaluation, "evaluate_tuning", lambda *_, **__: Metrics())
    chosen = ("selection.strategy=less", "selection.projection=16", "selection.validation=2")
    short = ("experts.count=1", "experts.epochs=2", "selection.warmup_epochs=1")
    overrides = (*test_replay_trajectory_matching.SMALL, *chosen, *short)
    model, folder, places, patch = surroundings
    options = OPTIONS | {"units": ROWS, "model": str(model), "samples": 2, "overrides": overrides}
    run = FlowRun("trajectory-matching", options, folder, places, patch)
    whole = unrelated_pairs()
    sparse = pa.table({name: [*whole[name].to_pylist()[:9], *[None] * (ROWS - 9)] for name in whole.column_names})
    one, other = (seen(run, rows, epsilon=None) for rows in (whole, sparse))
    assert differing(one, other) == set()
    told = [line for line in one["progress"].decode().splitlines() if line.startswith("train-expert")]
    assert sorted(told) == ["train-expert 1 of 2", "train-expert 2 of 2"]
