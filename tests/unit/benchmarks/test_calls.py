"""Every call of the package's functions in benchmarks/ has the arguments that they take today.

Benchmarks are run by hand, most of them for hours. What they import must exist, and what they call must accept the
call: the written arguments are bound to the signature, and nothing is run.
"""

import ast
import inspect
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
FITTING = "understudy.methods.conditional_generation.fitting"
Names = dict[str, object]  # what an imported name stands for


def imported(node: ast.AST) -> Names:
    """What an import of the package binds, and `partial`."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("understudy", "functools"):
        return {alias.asname or alias.name: member(node.module, alias.name) for alias in node.names}
    return {}


def member(module: str, name: str) -> object:
    """What a module holds under a name, or the module of that name in it."""
    owner = import_module(module)
    if not hasattr(owner, name) and hasattr(owner, "__path__"):
        return import_module(f"{module}.{name}")
    return getattr(owner, name)


def calls(node: ast.AST, known: Names) -> Iterator[tuple[ast.Call, Names]]:
    """Calls with the names that are known where they stand; a function's own imports come before the module's."""
    for child in ast.iter_child_nodes(node):
        names = known
        if isinstance(child, ast.FunctionDef):
            names = known | {name: value for one in ast.walk(child) for name, value in imported(one).items()}
        if isinstance(child, ast.Call):
            yield child, names
        yield from calls(child, names)


def meant(node: ast.expr, known: Names) -> object:
    """The function or class that is called; None where imports do not say it."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = meant(node.value, known)
        if inspect.ismodule(owner) or inspect.isclass(owner):
            return getattr(owner, node.attr)
    return None


def bind(call: ast.Call, known: Names) -> None:
    """Bind a call of the package to what it calls; other calls are let pass."""
    called, arguments, whole = meant(call.func, known), call.args, True
    if called is partial and arguments:
        called, arguments, whole = meant(arguments[0], known), arguments[1:], False
    if not callable(called) or not str(getattr(called, "__module__", "")).startswith("understudy"):
        return
    # What a star stands for is not known here: then only what is written out is bound.
    written = [one for one in arguments if not isinstance(one, ast.Starred)]
    named = {one.arg: None for one in call.keywords if one.arg is not None}
    signature = inspect.signature(called)
    whole = whole and len(written) + len(named) == len(arguments) + len(call.keywords)
    (signature.bind if whole else signature.bind_partial)(*written, **named)


def misfits(source: str) -> list[str]:
    """The calls that what they call would not take."""
    tree, found = ast.parse(source), []
    known = {name: value for one in tree.body for name, value in imported(one).items()}
    for call, names in calls(tree, known):
        try:
            bind(call, names)
        except (TypeError, AttributeError) as error:
            found.append(f"line {call.lineno}: {ast.unparse(call.func)}: {error}")
    return found


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_calls_the_package_as_it_is(path):
    assert misfits(path.read_text()) == []


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("train_on_table([], [], label_names=(), config=None)", "label_names"),
        ("fitting.train_on_table(rows)", "asked"),
        ("partial(train_on_table, label_names=())", "label_names"),
        ("train_on_table(*rows, label_names=())", "label_names"),
        ("fitting.gone(rows)", "gone"),
    ],
)
def test_a_call_that_does_not_fit_is_found(call, told):
    (found,) = misfits(
        f"""
from functools import partial
from understudy.methods.conditional_generation import fitting

def run(rows):
    from {FITTING} import train_on_table
    return [{call}]
"""
    )
    assert told in found


def test_a_name_that_is_gone_is_found():
    with pytest.raises(AttributeError, match="gone"):
        misfits(f"from {FITTING} import gone")
