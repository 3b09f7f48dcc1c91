import pyarrow as pa
import pytest

from understudy.errors import InputError
from understudy.evaluation.rows import Conditions, LabelledTexts, at_most, labelled_texts, texts_at_most


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


def test_of_many_rows_some_are_drawn_with_their_labels_in_their_order():
    rows = LabelledTexts([f"text {row}" for row in range(1000)], [row % 7 for row in range(1000)], tuple("abcdefg"))
    assert at_most(rows, 1000, seed=0) is rows
    some = at_most(rows, 300, seed=0)
    places = [int(text.split()[1]) for text in some.texts]
    assert len(set(places)) == 300
    assert places == sorted(places)
    assert list(some.labels) == [place % 7 for place in places]
    assert abs(sum(places) / 300 - 499.5) < 5 * 1000 / (12 * 300) ** 0.5, "from all over the table"
    assert list(texts_at_most(rows.texts, 300, seed=0)) == list(some.texts), "the same ones, so embedded once"
    assert list(texts_at_most(rows.texts, 300, seed=1)) != list(some.texts)
