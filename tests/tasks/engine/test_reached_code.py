"""What the code digest of a task holds: never another method, never the registry."""

import ast
import importlib
from pathlib import Path

import pytest
from prefect import Task

from understudy.methods import registry
from understudy.methods.method import Method
from understudy.tasks.engine import code_digest

PACKAGES = {name: place.rpartition(".")[0] for name, place in registry.BUILT_IN.items()}
TASKS = Path(code_digest.__file__).resolve().parents[1]


def tasks() -> dict[str, Task]:
    """Every task of the package, by module and name; those in dictionaries of zones too."""
    found = {}
    for path in sorted(TASKS.glob("*.py")):
        module = importlib.import_module(f"understudy.tasks.{path.stem}")
        for name, value in vars(module).items():
            of_zones = value.items() if isinstance(value, dict) else [("", value)]
            for zone, task in of_zones:
                if isinstance(task, Task) and code_of(task).__module__ == module.__name__:
                    found[f"{path.stem}.{name}{zone and f'[{zone}]'}"] = task
    return found


def code_of(task: Task):
    return getattr(task.fn, "__wrapped__", task.fn)


@pytest.mark.parametrize("name", tasks())
def test_no_task_reaches_another_method_or_the_registry(name):
    reached = code_digest.reached_code(tasks()[name].fn).modules
    assert "understudy.methods.registry" not in reached
    own = f"understudy.methods.{name.partition('.')[0]}"
    others = {module for module in reached for package in PACKAGES.values() if module.startswith(f"{package}.")}
    assert {module for module in others if not module.startswith(f"{own}.")} == set()


def test_every_method_has_tasks_that_reach_it():
    for package in PACKAGES.values():
        short = package.rpartition(".")[2]
        of_method = [task for name, task in tasks().items() if name.startswith(f"{short}.")]
        assert any(f"{package}.config" in code_digest.reached_code(task.fn).modules for task in of_method)


def test_editing_one_methods_config_leaves_the_others_digests_as_they_are(monkeypatch):
    before = {name: code_digest.reached_code(task.fn) for name, task in tasks().items()}
    edited = "understudy.methods.gradient_matching.config"
    parse = code_digest._parse_module

    def changed(module):
        found = parse(module)
        if module != edited or found is None:
            return found
        return code_digest._Parsed("another digest", found.imports, found.executed)

    monkeypatch.setattr(code_digest, "_parse_module", changed)
    code_digest.reached_code.cache_clear()
    after = {name: code_digest.reached_code(task.fn).digest for name, task in tasks().items()}
    code_digest.reached_code.cache_clear()
    moved = {name for name in before if before[name].digest != after[name]}
    assert moved == {name for name in before if edited in before[name].modules}
    assert moved
    assert {name.partition(".")[0] for name in moved} == {"gradient_matching"}


def test_every_object_of_the_registry_is_a_method_whose_places_exist():
    for name in registry.BUILT_IN:
        method = registry.get(name)
        assert isinstance(method, Method)
        for place in (method.flow, method.report.sections, method.generate):
            if place:
                module, _, attribute = place.partition(":")
                path = importlib.util.find_spec(module).origin
                tree = ast.parse(Path(path).read_text())
                assert attribute in {getattr(node, "name", None) for node in tree.body}, place
