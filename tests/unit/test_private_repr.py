"""What holds rows, texts or their tokens shows none in its repr, which ends in tracebacks, logs and notebooks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from understudy.data.instructions import InstructionRows
from understudy.data.tables import ClientRows, LabelledRows
from understudy.evaluation.rows import LabelledTexts
from understudy.generation.instructions import Pair
from understudy.methods.knowledge_distillation.train import PrivatePairs
from understudy.runs.split import SplitRows

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "src" / "understudy", ROOT / "tasks", ROOT / "flows")
MODELS = {"BaseModel", "Frozen", "MethodSettings", "NamedTuple"}
_MANY = "Sequence|Iterable|Collection|list|tuple|set|frozenset"
ROWS = re.compile(
    rf"\bpa\.Table\b|\b(Pair|Pairs|Question|Texts)\b|\b({_MANY})\[.*\bstr\b|\b(dict|Mapping)\[str, .*\bstr\b"
)
# Token ids and embeddings of texts, by name: a tensor may be anything.
TOKENS = {"input_ids", "ids", "text_tokens", "embeddings", "vectors"}
# Names that hold what is public wherever they stand: declared, in the words of the project, or of released artifacts.
PUBLIC = {
    "audits",
    "charges",
    "evaluations",
    "heuristics",
    "label_names",
    "missing",  # figures
    "not_private",
    "notes",
    "parents",
    "released",
    "sources",
    "third_parties",
    "warnings",
}
# Reviewed, and public or released: class -> fields.
REVIEWED = {
    # Prompts and texts of public models, and what was chosen on them.
    "PromptTable": {"input_ids"},
    "Calibration": {"words", "told"},
    "OwnTexts": {"pairs", "others"},
    # Settings.
    "AnswersConfig": {"harness_tasks"},
    "LoraConfig": {"targets"},
    "VerbalizerConfig": {"words"},
    "FilterConfig": {"label_check", "examples"},
    "RunRequest": {"overrides"},
    # Base models, their files, code and tasks.
    "Attacked": {"codes"},
    "ListedModel": {"origins", "weights"},
    "ShippedOrigin": {"files"},
    "HubOrigin": {"files"},
    "PackageOrigin": {"files"},
    "RunPlan": {"report_facts", "model_notes"},
    "FinishedPlan": {"files"},
    "ReachedCode": {"modules", "foreign"},
    "_Parsed": {"imports", "executed"},
    "_Spec": {"ignore"},
    # Folders of the user's that a purge names to its caller.
    "Removed": {"internal", "exports", "reports", "left"},
    # Names of sources and entries of the ledger.
    "SourceRecord": {"disjoint_from"},
    "EarlierRelease": {"disjoint"},
    "Chain": {"losses", "_sources", "_starts"},
    "Lease": {"_sources"},
    # Methods and sentences of a comparison.
    "CompareRequest": {"methods"},
    "ComparisonContent": {"look"},
    # Bounds of an audit on public rows.
    "PublicAudit": {"bounds"},
    # What a replay finds is what anyone could see of a run.
    "ReplayReport": {"differences", "statistics"},
    "_Pass": {"differences"},
    # Headings, pictures and label names of a report.
    "Content": {"figures"},
    "Table": {"columns"},
    "Section": {"lead"},
    "Completeness": {"lacking"},
    "Exported": {"lacking"},
}


class Shown(NamedTuple):
    """A field that a repr shows."""

    place: str
    owner: str
    name: str


def shown_fields(folder: Path) -> Iterator[tuple[Shown, str]]:
    """Every field in the repr of a dataclass, a pydantic model or a named tuple, with its annotation."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and shows_fields(node):
                for one in node.body:
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not is_hidden(one.value):
                        place = f"{path.relative_to(ROOT)}:{one.lineno}"
                        yield Shown(place, node.name, one.target.id), ast.unparse(one.annotation)


def shows_fields(node: ast.ClassDef) -> bool:
    if any(isinstance(one, ast.FunctionDef) and one.name == "__repr__" for one in node.body):
        return False
    decorators = [ast.unparse(one) for one in node.decorator_list]
    if any(one.startswith("dataclass") for one in decorators):
        return not any("repr=False" in one for one in decorators)
    return bool({ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases} & MODELS)


def is_hidden(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and any(
        keyword.arg == "repr" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in value.keywords
    )


def may_hold_rows(name: str, annotation: str) -> bool:
    if name in PUBLIC or annotation.startswith(("ClassVar", "Callable")):
        return False
    return name in TOKENS or ROWS.search(annotation) is not None


def test_no_field_that_may_hold_rows_is_in_a_repr():
    found = [
        f"{field.place} {field.owner}.{field.name}: {annotation}"
        for folder in FOLDERS
        for field, annotation in shown_fields(folder)
        if may_hold_rows(field.name, annotation) and field.name not in REVIEWED.get(field.owner, ())
    ]
    assert not found, "give it field(repr=False), or say in REVIEWED why it is public:\n" + "\n".join(found)


def test_the_rule_sees_what_it_is_for():
    shown = {"pa.Table", "Sequence[str | None]", "tuple[Pair, ...]", "list[tuple[str, str]]", "dict[str, list[str]]"}
    assert all(may_hold_rows("rows", annotation) for annotation in shown)
    assert not any(may_hold_rows("steps", annotation) for annotation in ("int", "str", "dict[str, int]", "Tensor"))
    assert may_hold_rows("input_ids", "Tensor")


def test_every_exception_is_still_needed():
    fields = [
        (field.owner, field.name)
        for folder in FOLDERS
        for field, annotation in shown_fields(folder)
        if may_hold_rows(field.name, annotation)
    ]
    assert {(owner, name) for owner, names in REVIEWED.items() for name in names} <= set(fields)


TEXT = "Anna Schmidt has a rare illness"
TABLE = pa.table({"text": [TEXT]})


@pytest.mark.parametrize(
    "private",
    [
        SplitRows(TABLE, TABLE, TABLE, 1, ("a", "b"), False, ()),
        LabelledRows(TABLE, ("a", "b")),
        ClientRows(TABLE),
        InstructionRows(TABLE),
        LabelledTexts([TEXT], [0], ("a", "b")),
        Pair(TEXT, TEXT, TEXT),
        PrivatePairs([Pair(TEXT)]),
    ],
    ids=lambda private: type(private).__name__,
)
def test_rows_are_not_in_their_repr(private):
    assert type(private).__name__ in repr(private)
    assert "Anna" not in repr(private)
    assert "illness" not in str(private)
