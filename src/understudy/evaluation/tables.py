"""Measure any synthetic table against real ones, however it was made: for the command `evaluate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from understudy.data import tables
from understudy.data.columns import among_columns
from understudy.errors import InputError, RowError
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.progress import Progress

SAME_ROWS: Final = (
    "--test: expected rows that nothing was trained on, found the rows of --real or most of them; name others"
)

_PARTS: Final = 10


@dataclass(frozen=True)
class ComparedTables:
    """A synthetic table and the real ones that it is measured against, checked.

    Attributes:
        synthetic: of any origin.
        train: the real rows it stands in for.
        test: real rows that nothing was trained on.
    """

    synthetic: tables.LabelledRows = field(repr=False)
    train: tables.LabelledRows = field(repr=False)
    test: tables.LabelledRows = field(repr=False)


def read_tables(
    synthetic: str,
    *,
    real: str,
    test: str,
    text_column: str = "text",
    label_column: str = "label",
    label_names: dict[str, str] | None = None,
) -> ComparedTables:
    """Read and check a synthetic table and two real ones; what is refused is told with its option and file.

    Args:
        synthetic: table with columns `text` and `label` (names).
        real: the real rows it stands in for.
        test: real rows that nothing was trained on.
        text_column: in the real tables.
        label_column: in the real tables.
        label_names: value in the real tables' label column -> name; None takes the values as names.

    Raises:
        InputError: a table is missing or malformed.
        RowError: a row is wrong, both real tables hold the same texts, or what is wrong tells of labels that nobody
            declared.
    """
    real_table, test_table, synthetic_table = (tables.read_source(file) for file in (real, test, synthetic))
    with _told_of("real", real):
        _require_labels(real_table, label_column, remedy="name it with --label-column")
        names = label_names or _undeclared_labels(real_table, label_column)
        columns = tables.LabelledColumns(text=text_column, label=label_column, label_names=names)
        train_rows = tables.check_labelled(real_table, columns)
    with _told_of("test", test):
        _require_labels(test_table, label_column, remedy="name it as in --real")
        test_rows = tables.check_labelled(test_table, columns)
    with _told_of("synthetic", synthetic):
        _require_labels(synthetic_table, "label", remedy="rename it in this file")
        made = _check_synthetic(synthetic_table, label_names, train_rows.label_names)
    if tables.are_mostly_the_same(train_rows.table, test_rows.table):
        raise RowError(SAME_ROWS)
    return ComparedTables(synthetic=made, train=train_rows, test=test_rows)


def _undeclared_labels(table: pa.Table, column: str) -> tuple[str, ...]:
    """The labels that the real rows have: nobody declared them, so they are as private as the rows."""
    with _of_rows():
        found = tables.labels_found(table, column)
        tables.declared_names(found)
    return found


@contextmanager
def _of_rows() -> Iterator[None]:
    """What is refused here tells of rows, for it goes by labels that were read from them."""
    try:
        yield
    except InputError as error:
        raise RowError(str(error)) from None


@contextmanager
def _told_of(option: str, file: str) -> Iterator[None]:
    """Say in a refusal which of the tables it is about."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"--{option} {file}: {error}") from None


def _require_labels(table: pa.Table, column: str, *, remedy: str) -> None:
    """Refuse a table without a column of labels.

    Raises:
        InputError: saying that labels are needed, and how to name their column.
    """
    if column not in table.column_names:
        raise InputError(
            f"expected a column {column!r} with labels, for labelled texts alone can be evaluated, found none of that "
            f"name{among_columns(table)}; if it has another name, {remedy}"
        )


def measure_tables(compared: ComparedTables, *, device: str = "cpu", progress: Progress | None = None) -> Metrics:
    """Measure a synthetic table. Internal: it reads real rows.

    Args:
        compared: from `read_tables`.
        device: torch device of the sentence encoder and the classifier.
        progress: called with (tenths read, ten), whatever the number of rows.
    """
    from understudy.evaluation.measure import Conditions, LabelledTexts, evaluate_synthetic
    from understudy.evaluation.texts.encoder import embed, load_encoder

    synthetic, train, test = (
        LabelledTexts(rows.table["text"].to_pylist(), rows.table["label"].to_pylist(), rows.label_names)
        for rows in (compared.synthetic, compared.train, compared.test)
    )
    encoder = load_encoder(device=device)
    return evaluate_synthetic(
        Conditions(synthetic, train),
        test,
        config=EvaluationConfig(profile="tiny"),
        embedder=partial(embed, encoder=encoder, cache=None, parts=_PARTS, progress=progress),
        device=device,
    )


def _check_synthetic(
    table: pa.Table, label_names: dict[str, str] | None, names: tuple[str, ...]
) -> tables.LabelledRows:
    """The synthetic rows: labels by name, or in a column of numbers by the values that the real rows have."""
    own = tables.LabelledColumns(label_names=names)
    kind = table.schema.field(own.label).type if table.column_names.count(own.label) == 1 else pa.string()
    if label_names and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return tables.check_labelled(table, tables.LabelledColumns(label_names=label_names))
    with nullcontext() if label_names else _of_rows():
        tables.refuse_positions(table, own.label, names)
    return tables.check_labelled(table, own)


def records_of(rows: tables.LabelledRows) -> list[dict[str, str]]:
    """Rows as the report shows them: text and label name."""
    texts, labels = rows.table["text"].to_pylist(), rows.table["label"].to_pylist()
    return [{"text": text, "label": rows.label_names[label]} for text, label in zip(texts, labels, strict=True)]
