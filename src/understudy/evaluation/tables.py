"""Evaluate any synthetic table against real ones, however it was made: the command `evaluate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa

from understudy.data import tables
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.reporting.report import About, ReportFiles, build_report


def evaluate_tables(
    synthetic: str,
    *,
    real: str,
    test: str,
    out: Path,
    text_column: str = "text",
    label_column: str = "label",
    label_names: dict[str, str] | None = None,
    device: str = "cpu",
) -> tuple[ReportFiles, Metrics]:
    """Measure a synthetic table and write report.html and report.json. Internal: it reads real rows.

    Args:
        synthetic: table with columns `text` and `label` (names).
        real: the real rows it stands in for.
        test: real rows that nothing was trained on.
        out: folder of the report.
        text_column: in the real tables.
        label_column: in the real tables.
        label_names: value in the real tables' label column -> name; None takes the values as names.
        device: torch device of the sentence encoder and the classifier.

    Raises:
        InputError: a table is missing, malformed, or has labels that the others do not declare.
    """
    from understudy.evaluation.encoder import embed, load_encoder
    from understudy.evaluation.measure import LabelledTexts, evaluate_synthetic

    real_table = tables.read_source(real)
    names = label_names or tables.labels_found(real_table, label_column)
    columns = tables.LabelledColumns(text=text_column, label=label_column, label_names=names)
    train_rows = tables.check_labelled(real_table, columns)
    checked = {
        "synthetic": _check_synthetic(tables.read_source(synthetic), label_names, train_rows.label_names),
        "train": train_rows,
        "test": tables.check_labelled(tables.read_source(test), columns),
    }
    sets = {
        name: LabelledTexts(rows.table["text"].to_pylist(), rows.table["label"].to_pylist(), rows.label_names)
        for name, rows in checked.items()
    }
    metrics = evaluate_synthetic(
        sets["synthetic"],
        sets["train"],
        sets["test"],
        config=EvaluationConfig(profile="tiny"),
        embedder=partial(embed, encoder=load_encoder(device=device), cache=None),
        device=device,
    )
    files = build_report(
        out,
        title="Evaluation of a synthetic table",
        metrics=metrics,
        statement={},
        samples=records_of(checked["synthetic"]),
        about=About(made=f"{len(sets['synthetic'].texts)} labelled texts", label_names=train_rows.label_names),
    )
    return files, metrics


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
