"""Labels of a synthetic table that is evaluated: by name, or by the value that they have in the real rows."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.errors import InputError, RowError
from understudy.evaluation.tables import _check_synthetic, read_tables

NAMES = {"1": "positive", "0": "negative"}


def labels(values, label_names=NAMES):
    table = pa.table({"text": [f"text {i}" for i in range(len(values))], "label": values})
    rows = _check_synthetic(table, label_names, ("positive", "negative"))
    return [rows.label_names[label] for label in rows.table["label"].to_pylist()]


def test_names_are_taken_as_they_are_and_numbers_as_in_the_real_rows():
    assert labels(["negative", "positive"]) == ["negative", "positive"]
    assert labels([0, 1, 1]) == ["negative", "positive", "positive"], "not by the order of the names"


def test_numbers_that_nobody_named_are_refused():
    with pytest.raises(InputError, match="VALUE=NAME"):
        labels([0, 1], label_names=None)


@pytest.mark.parametrize(("label_names", "is_of_rows"), [(None, True), ({"a": "same", "b": "same"}, False)])
def test_a_refusal_that_goes_by_labels_read_from_rows_is_one_about_rows(label_names, is_of_rows, tmp_path):
    """Prefect keeps the text of every other one."""
    pq.write_table(pa.table({"text": ["one", "two"], "label": ["a", "a"]}), tmp_path / "rows.parquet")
    place = str(tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="at least two distinct names") as refused:
        read_tables(place, real=place, test=place, label_names=label_names)
    assert isinstance(refused.value, RowError) == is_of_rows


def test_real_rows_to_measure_on_that_were_trained_on_are_refused_for_their_rows(tmp_path):
    for name, texts in {"real": ["one", "two"], "test": ["two", "one"]}.items():
        pq.write_table(pa.table({"text": texts, "label": ["a", "b"]}), tmp_path / f"{name}.parquet")
    real, test = (str(tmp_path / f"{name}.parquet") for name in ("real", "test"))
    with pytest.raises(RowError, match="found the rows of --real"):
        read_tables(real, real=real, test=test, label_names={"a": "a", "b": "b"})


def test_names_alone_for_numbers_are_refused_by_labels_that_were_read_from_rows(tmp_path):
    for name, values in {"real": ["no", "yes"], "made": [0, 1]}.items():
        pq.write_table(pa.table({"text": ["one", "two"], "label": values}), tmp_path / f"{name}.parquet")
    real = str(tmp_path / "real.parquet")
    with pytest.raises(RowError, match="VALUE=NAME"):
        read_tables(str(tmp_path / "made.parquet"), real=real, test=real)
