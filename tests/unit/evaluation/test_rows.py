import pyarrow as pa
import pytest

from understudy.errors import InputError
from understudy.evaluation.rows import Conditions, LabelledTexts, labelled_texts


@pytest.mark.parametrize("labels", [["good", "bad"], [1, 0]])
def test_labels_by_name_and_by_index(labels):
    rows = labelled_texts(pa.table({"text": ["x", "y"], "label": labels}), ("bad", "good"))
    assert rows.texts == ["x", "y"]
    assert list(rows.labels) == [1, 0]
    assert rows.label_names == ("bad", "good")


@pytest.mark.parametrize("labels", [["good", "secret"], [0, 2], [0, -1], [0, None]])
def test_an_undeclared_label_is_named_by_its_row_only(labels):
    with pytest.raises(InputError, match="row 1") as error:
        labelled_texts(pa.table({"text": ["x", "y"], "label": labels}), ("bad", "good"))
    assert "secret" not in str(error.value)


def test_arms_come_in_the_reports_order_without_the_absent():
    rows = LabelledTexts(["a"], [0], ("x",))
    assert list(Conditions(rows, rows).named()) == ["synthetic", "real"]
    assert list(Conditions(rows, rows, rows).named()) == ["prompt_only", "synthetic", "real"]
