"""The layers hold: flows -> tasks -> core, one way; the rules that a linter cannot say."""

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from setuptools import find_packages

from understudy.evaluation.names import check_declared

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "understudy"
METHODS = {
    "conditional_generation",
    "gradient_matching",
    "preference_optimization",
    "knowledge_distillation",
    "trajectory_matching",
}
# The Python API calls the flows that the command line calls (docs/decisions/0002).
MAY_IMPORT_FLOWS = {CORE / "api.py"}


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


class Code(NamedTuple):
    """What the rules ask of a file."""

    imported: frozenset[str]
    trusts: tuple[ast.expr, ...]
    """What it gives as `trust_remote_code`."""
    loads: tuple[int, ...]
    """The lines that call `torch.load`."""


@cache
def code(path: Path) -> Code:
    """Each file is read once for all rules."""
    imported: set[str] = set()
    trusts, loads = [], []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                imported |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                imported |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
            case ast.keyword(arg="trust_remote_code"):
                trusts.append(node.value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                loads.append(node.lineno)
    return Code(frozenset(imported), tuple(trusts), tuple(loads))


def imports(path: Path, *packages: str) -> set[str]:
    return {m for m in code(path).imported if any(m == p or m.startswith(p + ".") for p in packages)}


@pytest.mark.parametrize("path", python_files(CORE), ids=lambda p: str(p.relative_to(CORE)))
def test_core_knows_neither_prefect_nor_mlflow_nor_the_layers_above(path):
    above = () if path in MAY_IMPORT_FLOWS else ("understudy.flows", "understudy.tasks")
    assert imports(path, "prefect", "mlflow", "flows", "tasks", *above) == set()


def test_tasks_do_not_import_flows():
    for path in python_files(ROOT / "tasks"):
        assert imports(path, "understudy.flows", "flows") == set(), path


def test_only_tracking_imports_mlflow():
    users = [p.name for p in python_files(ROOT / "tasks", ROOT / "flows", CORE) if imports(p, "mlflow")]
    assert users == [
        "tracking.py",
        "tracking_attempts.py",
        "tracking_database.py",
        "tracking_experiment.py",
        "tracking_log.py",
    ]


def test_methods_do_not_import_each_other():
    for method in METHODS:
        others = [f"understudy.methods.{other}" for other in METHODS - {method}]
        for path in python_files(CORE / "methods" / method):
            assert imports(path, *others) == set(), path


@pytest.mark.parametrize("folder", ["evaluation", "auditing", "reporting", "baselines", "generation", "models"])
def test_what_methods_share_names_none_of_them(folder):
    """In no form that a reader or Python sees: code, docstrings and comments name papers instead."""
    named = re.compile("|".join(name.replace("_", r"[\W_]*").replace("z", "[sz]") for name in METHODS), re.IGNORECASE)
    read = [path for path in (CORE / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert read
    assert {path for path in read if named.search(path.read_text())} == set()
    for path in python_files(CORE / folder):
        assert imports(path, "understudy.methods") == set(), path


def test_names_that_methods_declare_have_one_meaning_each():
    declaring = sorted((CORE / "methods").glob("*/metric_names.py"))
    declared = [
        metric
        for path in declaring
        for metric in import_module(f"understudy.methods.{path.parent.name}.metric_names").METRIC_NAMES
    ]
    check_declared(declared)
    assert declared


def test_no_module_loads_pickles_or_remote_code():
    for path in python_files(ROOT / "tasks", ROOT / "flows", CORE):
        assert imports(path, "pickle", "cloudpickle", "joblib", "dill") == set(), path
        for value in code(path).trusts:
            assert isinstance(value, ast.Constant), path
            assert value.value is False, path
        assert code(path).loads == (), f"{path} calls torch.load; artifacts are safetensors"


def test_every_package_is_in_the_wheel():
    declared = set(find_packages(str(ROOT / "src"))) | set(
        re.findall(r'"(understudy\.[\w.]+)"', (ROOT / "setup.py").read_text())
    )
    found = {".".join(("understudy", *path.parent.relative_to(CORE).parts)) for path in CORE.rglob("__init__.py")}
    assert declared == found | {
        f"understudy.{name}" for name in ("flows", "flows.commands", "tasks", "tasks.engine", "shipped")
    }


def test_method_package_names_are_the_designed_ones():
    packages = {p.name for p in (CORE / "methods").iterdir() if (p / "__init__.py").exists()}
    assert METHODS & packages, "no method package found: the checks above would be vacuous"


# From the bottom up, as docs/architecture.md lists them; a module imports its own line and those above it.
LAYERS = (
    (
        "addresses",
        "compute",
        "allocator",
        "cores",
        "durable",
        "errors",
        "frozen",
        "hardware",
        "lazy",
        "locks",
        "owner_only",
        "progress",
        "quantities",
        "settings",
        "shipped",
        "tensor_files",
    ),
    ("data",),
    ("privacy",),
    ("artifacts",),
    ("models",),
    ("generation",),
    ("evaluation",),
    ("auditing", "reporting", "baselines"),
    ("methods",),
    ("runs",),
    ("tasks/engine",),
    ("tasks",),
    ("flows", "api", "api_comparing", "api_measuring"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def test_the_page_names_every_file_of_the_ground():
    (row,) = (line for line in (ROOT / "docs" / "architecture.md").read_text().splitlines() if "| ground |" in line)
    assert set(re.findall(r"`(\w+)\.py`", row)) == set(LAYERS[0]) - {"shipped"}


def place_of(module: str) -> str:
    """The folder, or the file at the top, that a module of the package lies in."""
    parts = module.split(".")[1:]
    if not parts:
        return "frozen"
    return "tasks/engine" if parts[:2] == ["tasks", "engine"] else parts[0]


@cache
def edges() -> set[tuple[str, str, str]]:
    """(importing module, its place, the place that it imports) of every import of the package, wherever it stands."""
    found = set()
    for folder, name in (
        (CORE, "understudy"),
        (ROOT / "tasks", "understudy.tasks"),
        (ROOT / "flows", "understudy.flows"),
    ):
        for path in folder.rglob("*.py"):
            if path == CORE / "__init__.py":
                continue
            module = ".".join((name, *path.relative_to(folder).with_suffix("").parts))
            for imported in imports(path, "understudy"):
                found.add((module, place_of(module), place_of(imported)))
    return found


def test_no_module_imports_upwards():
    wrong = sorted(edge for edge in edges() if RANK[edge[1]] < RANK[edge[2]])
    assert wrong == [], "a lower layer imports a higher one"
    assert len({place for _, place, _ in edges()}) > 15, "places were not found: the check would be vacuous"


def test_the_longest_chain_of_imports_between_folders_is_short():
    folders: dict[str, set[str]] = {}
    for _, place, imported in edges():
        if RANK[imported] < RANK[place] and RANK[imported] > 0:
            folders.setdefault(place, set()).add(imported)

    def length(place: str) -> int:
        return 1 + max((length(below) for below in folders.get(place, ())), default=0)

    assert 4 < max(map(length, folders)) <= 8
