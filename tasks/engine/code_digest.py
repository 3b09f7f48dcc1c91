"""A digest of the code that a task can reach: what makes a cached result out of date.

It covers the task's function, the definitions of its module that the function uses, and every module of
Understudy reached from there by import statements, those inside functions too; of a package that only stands
above a reached module, what its import executes. Syntax trees are hashed without docstrings, so comments, layout
and documentation do not matter. Modules that only run tasks (cache, leases, progress, tracking) are left out:
they do not decide what a task computes. A module imported by a computed name is not seen; write the import out.
"""

import ast
import functools
import hashlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# What runs tasks decides nothing that a task computes.
_ENGINE = "understudy.tasks.engine"


_PARSING = threading.Lock()
_PARSINGS = 5


@dataclass(frozen=True)
class ReachedCode:
    """What a function reaches: the digest of the code, our modules, and the top-level names of foreign ones."""

    digest: str
    modules: frozenset[str]
    foreign: frozenset[str]


@dataclass(frozen=True)
class _Parsed:
    digest: str
    imports: tuple[str, ...]
    executed: tuple[str, ...]


@functools.lru_cache(maxsize=1024)
def reached_code(function: Callable[..., Any]) -> ReachedCode:
    """Follow the imports from `function`.

    Args:
        function: a Python function whose source file is there; decorators that use `functools.wraps` are
            looked through.

    Returns:
        The digest and the foreign modules, the same for the same sources.
    """
    bare = inspect.unwrap(function)
    path = Path(inspect.getsourcefile(bare) or bare.__code__.co_filename)
    statements = _needed_statements(_parse(path), bare.__code__.co_firstlineno)
    package = bare.__module__.rpartition(".")[0]
    roots = {"understudy", bare.__module__.partition(".")[0]}
    digests = {"": "".join(_dump(statement) for statement in statements)}
    foreign: set[str] = set()
    followed: set[tuple[str, bool]] = set()
    waiting = [(name, True) for name in _imported(statements, package)]
    while waiting:
        name, whole = waiting.pop()
        if name.partition(".")[0] not in roots:
            foreign.add(name.partition(".")[0])
            continue
        if (name, whole) in followed or name.startswith(_ENGINE) or name == bare.__module__:
            continue
        followed.add((name, whole))
        parsed = _parse_module(name)
        if parsed is not None:
            digests[name] = parsed.digest
            waiting += [(found, True) for found in (parsed.imports if whole else parsed.executed)]
            waiting += [(parent, False) for parent in _parents(name)]
    text = "\n".join(f"{name} {digests[name]}" for name in sorted(digests))
    return ReachedCode(hashlib.sha256(text.encode()).hexdigest(), frozenset(digests) - {""}, frozenset(foreign))


def _needed_statements(module: ast.Module, line: int) -> list[ast.stmt]:
    """The top-level statement around `line`, and those it uses by name, in the order of the file."""
    bound: dict[str, list[ast.stmt]] = {}
    for statement in module.body:
        for name in _bound_names(statement):
            bound.setdefault(name, []).append(statement)
    start = next(s for s in module.body if _first_line(s) <= line <= (s.end_lineno or s.lineno))
    if isinstance(start, ast.FunctionDef):
        # The decorator says how the task runs, not what it computes.
        start.decorator_list = []
    needed = {id(start): start}
    waiting: list[ast.stmt] = [start, *bound.get("*", [])]
    while waiting:
        statement = waiting.pop()
        needed[id(statement)] = statement
        used = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        waiting.extend(s for name in used for s in bound.get(name, []) if id(s) not in needed)
    return sorted(needed.values(), key=lambda statement: statement.lineno)


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min(int(node.lineno) for node in (statement, *decorators))


def _bound_names(statement: ast.AST) -> Iterator[str]:
    """The names of the module that a top-level statement binds, not those local to a function or class."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    if isinstance(statement, ast.alias):
        yield statement.asname or statement.name.partition(".")[0]
    elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
        yield statement.id
    for part in ast.iter_child_nodes(statement):
        yield from _bound_names(part)


@functools.lru_cache(maxsize=4096)
def _parse_module(name: str) -> _Parsed | None:
    """The digest and the imports of one module, or None when there is no such Python module."""
    spec = _find_spec(name)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    module = _parse(Path(spec.origin))
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    imports = tuple(dict.fromkeys(_imported(module.body, package)))
    executed = tuple(dict.fromkeys(_imported(module.body, package, executed=True)))
    return _Parsed(hashlib.sha256(_dump(module).encode()).hexdigest(), imports, executed)


@functools.lru_cache(maxsize=8192)
def _find_spec(name: str) -> ModuleSpec | None:
    """Find a module without importing anything; `importlib.util.find_spec` would import its parents."""
    parent = name.rpartition(".")[0]
    path = None
    if parent:
        found = _find_spec(parent)
        if found is None or found.submodule_search_locations is None:
            return None
        path = list(found.submodule_search_locations)
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _imported(statements: Iterable[ast.AST], package: str, *, executed: bool = False) -> Iterator[str]:
    """Modules that import statements name.

    Args:
        statements: the code.
        package: what relative imports are relative to.
        executed: only imports that run when the module is imported, not those inside functions.
    """
    for node in statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            # Of foreign packages only the first name counts, and some warn when a module of theirs is looked for.
            ours = base.partition(".")[0] in ("understudy", package.partition(".")[0])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                # A submodule comes alone; its package is then only a parent.
                yield name if ours and _find_spec(base) and _find_spec(name) else base
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from _imported(node.orelse, package, executed=executed)
        elif not (executed and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield from _imported(ast.iter_child_nodes(node), package, executed=executed)


def _is_type_checking(test: ast.expr) -> bool:
    return (test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")) == "TYPE_CHECKING"


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _parse(path: Path) -> ast.Module:
    """The syntax tree of a file, one at a time: Python 3.11 counts its depth for all threads together (gh-106905).

    Libraries parse in threads of their own, without this lock, so what fails by that alone is tried again.
    """
    with _PARSING:
        for _ in range(_PARSINGS - 1):
            try:
                return ast.parse(path.read_bytes())
            except SystemError:
                continue
        return ast.parse(path.read_bytes())


def _dump(tree: ast.AST) -> str:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [statement for statement in body if not _is_text(statement)]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(statement: ast.AST) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
