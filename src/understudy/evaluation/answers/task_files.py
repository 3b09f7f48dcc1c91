"""Task files of lm-evaluation-harness: what they are made of, and that they bring no code.

A task file may name Python functions, which the harness imports from the files beside it and calls: like
`trust_remote_code` of a model, that runs whatever whoever wrote the file wants, as the user, beside private rows. A
file with code is refused, and so is what it includes. Templates of Jinja are confined to a sandbox, and metrics whose
code the hub would send are not fetched. Tasks that come with the harness have code too: it was installed with the
library that runs it, and is trusted like that library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from understudy.errors import InputError

# Settings of a task that are code by themselves, or read more of it from elsewhere.
_CODE: Final = ("class", "use_prompt", "unsafe_code")
_PLAIN: Final = "tag:yaml.org,2002:"
_HOW: Final = (
    "a task file's code would run as you, beside private rows, so none is run: write the task with templates "
    "({{...}}) and registered metrics, prepare its data beforehand, or name a task that comes with the harness"
)


def files_of(task: str) -> list[Path]:
    """A task file with all that it includes, each once; none for the name of a task.

    Raises:
        InputError: a file is no YAML, or cannot be read.
    """
    found: list[Path] = []
    waiting = [Path(task).expanduser().resolve()]
    while waiting:
        path = waiting.pop(0)
        if path.is_file() and path not in found:
            found.append(path)
            waiting += [
                (path.parent / scalar.value).resolve()
                for key, value in _settings(_content(path, task))
                if key == "include"
                for scalar in (value.value if isinstance(value, yaml.SequenceNode) else [value])
                if isinstance(scalar, yaml.ScalarNode)
            ]
    return found


def refuse_code(task: str) -> None:
    """Refuse a task file that names code, or includes a file that does; those of the harness itself may.

    Raises:
        InputError: naming the file and the line.
    """
    for path in files_of(task):
        root = _content(path, task)
        if root is None or _comes_with_harness(path):
            continue
        for node in _nodes(root):
            if not node.tag.startswith(_PLAIN) or node.tag.startswith(f"{_PLAIN}python"):
                _refuse(task, path, node, f"{node.tag} {_in_short(node)}")
        for key, value in _settings(root):
            if key in _CODE:
                _refuse(task, path, value, f"{key}: {_in_short(value)}")


@contextmanager
def without_fetched_code() -> Iterator[list[str]]:
    """Within it, the harness's templates are confined, and metrics whose code the hub sends are not fetched.

    Returns:
        The metrics that were asked of the hub, as they are asked; where the harness catches the refusal, this tells.
    """
    import evaluate
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    asked: list[str] = []

    def refused(name: str, *_: Any, **__: Any) -> None:
        asked.append(name)
        raise InputError(f"expected a metric of the harness, found {name!r}, whose code would be fetched from the hub")

    load, open_templates = evaluate.load, utils.env
    confined = SandboxedEnvironment(
        undefined=open_templates.undefined, keep_trailing_newline=open_templates.keep_trailing_newline
    )
    confined.filters.update(open_templates.filters)
    evaluate.load, utils.env = refused, confined
    try:
        yield asked
    finally:
        evaluate.load, utils.env = load, open_templates


def _content(path: Path, task: str) -> yaml.Node | None:
    """What a file holds, as YAML writes it: nothing in it is made an object."""
    try:
        return yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"evaluation.harness_tasks: {task!r}: expected YAML in {path}, found {' '.join(str(error).split())}; "
            "correct the file"
        ) from error


def _nodes(root: yaml.Node | None) -> Iterator[yaml.Node]:
    """Every node once; one with an anchor may stand in several places, and even in itself."""
    seen: set[int] = set()
    waiting = [] if root is None else [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, yaml.MappingNode):
            waiting += [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _settings(root: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    """Every key with its value, at any depth: members of a group and merged mappings hold settings too."""
    for node in _nodes(root):
        if isinstance(node, yaml.MappingNode):
            yield from ((key.value, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))


def _in_short(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "..."


def _comes_with_harness(path: Path) -> bool:
    spec = find_spec("lm_eval")
    places = [] if spec is None else spec.submodule_search_locations or []
    return any(path.is_relative_to(Path(place).resolve() / "tasks") for place in places)


def _refuse(task: str, path: Path, node: yaml.Node, found: str) -> None:
    raise InputError(
        f"evaluation.harness_tasks: {task!r}: expected a task file without code, found {found!r} in {path}, line "
        f"{node.start_mark.line + 1}; {_HOW}"
    )
