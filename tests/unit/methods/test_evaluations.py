"""What a statement says that each task of an evaluation reads of real rows."""

import inspect

import pytest

from understudy.lazy import load
from understudy.methods import registry
from understudy.methods.method import Promise

BOTH, HELD_OUT = "the rows and the held-out rows", "the held-out rows"
# Method -> task -> what it is said to read, and in which module it stands.
READS = {
    "conditional-generation": {"evaluate": (BOTH, "evaluation"), "evaluate-loss": (HELD_OUT, "conditional_generation")},
    "gradient-matching": {"evaluate": (BOTH, "evaluation"), "evaluate-matching": (BOTH, "gradient_matching")},
    "preference-optimization": {"evaluate-rounds": (BOTH, "preference_optimization")},
    "trajectory-matching": {
        "evaluate-tuning": (f"{HELD_OUT}, and of the rows how many were cut", "trajectory_matching")
    },
    "knowledge-distillation": {"evaluate-pairs": (BOTH, "knowledge_distillation")},
}
# Tasks that are handed the tables of a run as one argument.
OF_ALL_TABLES = {"evaluate-matching", "evaluate-rounds", "evaluate-pairs"}


@pytest.mark.parametrize("name", READS)
def test_each_task_is_said_to_read_what_it_is_handed(name, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    method = registry.get(name)
    config = method.config.model_validate({"preferences": {"learning_rate": 1e-3}} if "preference" in name else {})
    if method.charge.by_epsilon is not None:
        config = method.charge.by_epsilon(config, False)
    epsilon = 8.0 if method.charge.by_epsilon is None else float("inf")
    queries = method.charge.queries(config, n=400, epsilon=epsilon, delta=1e-4)
    described = method.preparation.describe(config, Promise(queries, 400, epsilon, 1e-4, ("bad", "good")))
    assert {access.task: access.reads for access in described.evaluations} == {
        task: reads for task, (reads, _) in READS[name].items()
    }
    for task, (reads, module) in READS[name].items():
        found = load(f"understudy.tasks.{module}:{task.replace('-', '_')}")
        assert found.name == task
        names = inspect.signature(found.fn).parameters
        handed_rows = "train" in names or task in OF_ALL_TABLES
        assert handed_rows == (reads != HELD_OUT)
