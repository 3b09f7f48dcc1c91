"""Labels of a synthetic table that is evaluated: by name, or by the value that they have in the real rows."""

import pyarrow as pa
import pytest

from understudy.errors import InputError
from understudy.evaluation.tables import _check_synthetic

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
