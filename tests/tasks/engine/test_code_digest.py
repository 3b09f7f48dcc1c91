import importlib
import subprocess
import sys
import textwrap

import pytest

from understudy.tasks.engine import code_digest as module
from understudy.tasks.engine.code_digest import reached_code

STEPS = '''
"""Steps."""
import json
from acme import words
from acme.tools import sharpen

LIMIT = 3
UNUSED = 4

def helper(x):
    """Help."""
    return x + LIMIT

def unused(x):
    late = LIMIT
    return x

def decorate(**options):
    return lambda function: function

@decorate(retries=1)
def train(x):
    """Train."""
    from acme import late
    # A comment.
    return late.finish(helper(x)) + words.COUNT + sharpen(x)
'''
FILES = {
    "__init__.py": "",
    "steps.py": STEPS,
    "words.py": "import numpy\nimport acme.sub.leaf\nCOUNT = 1\n",
    "tools.py": '"""Tools."""\ndef sharpen(x):\n    """Sharpen."""\n    return x\n',
    "late.py": "from . import deep\nfrom .deep import bottom as b\ndef finish(x):\n    return b(x)\n",
    "deep.py": "def bottom(x):\n    return x\n",
    "other.py": "X = 1\n",
    "lazy.py": "X = 1\n",
    "typed.py": "X = 1\n",
    "sub/__init__.py": "from acme import eager\ndef door():\n    from acme import lazy\n    return lazy\n",
    "sub/leaf.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from acme import typed\nY = 1\n",
    "eager.py": "X = 1\n",
}


def clear():
    for cache in (module._parse_module, module._find_spec):
        cache.cache_clear()


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """Write the package `acme` with changed files and return the digest of its `train`."""

    def load(changes=None, function="train"):
        for name in [name for name in sys.modules if name.split(".")[0] == "acme"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        clear()
        root = tmp_path / f"v{len(list(tmp_path.iterdir()))}"
        (root / "acme").mkdir(parents=True)
        for name, content in (FILES | (changes or {})).items():
            (root / "acme" / name).parent.mkdir(exist_ok=True)
            (root / "acme" / name).write_text(textwrap.dedent(content))
        monkeypatch.syspath_prepend(str(root))
        return reached_code(getattr(importlib.import_module("acme.steps"), function))

    yield load
    for name in [name for name in sys.modules if name.split(".")[0] == "acme"]:
        del sys.modules[name]
    clear()


def steps(old: str, new: str) -> dict[str, str]:
    assert old in STEPS
    return {"steps.py": STEPS.replace(old, new)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        steps('"""Train."""', '"""Train well."""'),
        steps('    """Help."""\n', ""),
        steps("# A comment.", "# Another comment.\n\n"),
        steps("return x + LIMIT", "return (x +   LIMIT)"),
        steps("UNUSED = 4", "UNUSED = 5"),
        steps("    late = LIMIT\n", "    late = 2 * LIMIT\n"),
        steps("retries=1", "retries=2"),
        {"tools.py": '"""Better tools."""\ndef sharpen(x):\n    return x\n'},
        {"other.py": "X = 2\n"},
        # Behind a function of a package that only stands above a reached module, or only for the type checker.
        {"lazy.py": "X = 2\n"},
        {"typed.py": "X = 2\n"},
    ],
)
def test_documentation_layout_and_unreached_code_do_not_matter(digest_of, changes):
    assert digest_of().digest == digest_of(changes).digest


@pytest.mark.parametrize(
    "changes",
    [
        steps("words.COUNT + sharpen(x)", "words.COUNT - sharpen(x)"),
        steps("x + LIMIT", "x - LIMIT"),
        steps("LIMIT = 3", "LIMIT = 4"),
        steps("def train(x)", "def train(x, y=1)"),
        {"words.py": FILES["words.py"].replace("1", "2")},
        {"sub/leaf.py": FILES["sub/leaf.py"].replace("1", "2")},
        {"sub/__init__.py": FILES["sub/__init__.py"].replace("return lazy", "return 1")},
        {"eager.py": "X = 2\n"},
        {"tools.py": "def sharpen(x):\n    return -x\n"},
        {"late.py": FILES["late.py"].replace("b(x)", "b(x) + 1")},
        {"deep.py": "def bottom(x):\n    return x + 1\n"},
        {"__init__.py": "X = 1\n"},
    ],
)
def test_reached_code_matters(digest_of, changes):
    assert digest_of().digest != digest_of(changes).digest


def test_foreign_modules_are_named(digest_of):
    # json is imported beside the function, but nothing that the function uses needs it.
    assert digest_of().foreign == {"numpy", "typing"}


def test_functions_of_one_module_differ(digest_of):
    assert digest_of().digest != digest_of(function="helper").digest


def test_a_function_inside_a_function_has_a_digest():
    def inner() -> int:
        return 1

    assert len(reached_code(inner).digest) == 64


def test_understudy_modules_are_followed_and_the_task_house_is_not():
    def uses_noise() -> object:
        from understudy.privacy import labels
        from understudy.tasks.engine import runtime

        return labels, runtime

    modules = reached_code(uses_noise).modules
    assert {"understudy", "understudy.privacy", "understudy.privacy.labels"} <= modules
    assert "understudy.tasks.engine.runtime" not in modules


def test_nothing_is_imported_to_find_what_is_reached(tmp_path):
    code = (
        "import sys\n"
        "from understudy.tasks.engine.code_digest import reached_code\n"
        "def late():\n    from understudy.privacy.noise import gaussian\n    return gaussian\n"
        "found = reached_code(late)\n"
        "print('torch' in found.foreign, 'understudy.privacy.noise' in found.modules, 'torch' in sys.modules)"
    )
    (tmp_path / "late.py").write_text(code)
    done = subprocess.run([sys.executable, str(tmp_path / "late.py")], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]
