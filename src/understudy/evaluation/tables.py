"""Measure any synthetic table against real ones, however it was made: for the command `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from understudy.data import tables
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics


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
    """Read and check a synthetic table and two real ones.

    Args:
        synthetic: table with columns `text` and `label` (names).
        real: the real rows it stands in for.
        test: real rows that nothing was trained on.
        text_column: in the real tables.
        label_column: in the real tables.
        label_names: value in the real tables' label column -> name; None takes the values as names.

    Raises:
        InputError: a table is missing, malformed, or has labels that the others do not declare.
    """
    real_table = tables.read_source(real)
    names = label_names or tables.labels_found(real_table, label_column)
    columns = tables.LabelledColumns(text=text_column, label=label_column, label_names=names)
    train_rows = tables.check_labelled(real_table, columns)
    return ComparedTables(
        synthetic=_check_synthetic(tables.read_source(synthetic), label_names, train_rows.label_names),
        train=train_rows,
        test=tables.check_labelled(tables.read_source(test), columns),
    )


def measure_tables(compared: ComparedTables, *, device: str = "cpu") -> Metrics:
    """Measure a synthetic table. Internal: it reads real rows.

    Args:
        compared: from `read_tables`.
        device: torch device of the sentence encoder and the classifier.
    """
    from understudy.evaluation.encoder import embed, load_encoder
    from understudy.evaluation.measure import LabelledTexts, evaluate_synthetic

    synthetic, train, test = (
        LabelledTexts(rows.table["text"].to_pylist(), rows.table["label"].to_pylist(), rows.label_names)
        for rows in (compared.synthetic, compared.train, compared.test)
    )
    return evaluate_synthetic(
        synthetic,
        train,
        test,
        config=EvaluationConfig(profile="tiny"),
        embedder=partial(embed, encoder=load_encoder(device=device), cache=None),
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
    tables.refuse_positions(table, own.label, names)
    return tables.check_labelled(table, own)


def records_of(rows: tables.LabelledRows) -> list[dict[str, str]]:
    """Rows as the report shows them: text and label name."""
    texts, labels = rows.table["text"].to_pylist(), rows.table["label"].to_pylist()
    return [{"text": text, "label": rows.label_names[label]} for text, label in zip(texts, labels, strict=True)]
