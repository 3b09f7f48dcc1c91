"""A repr may land in a log, an error or a traceback, so it shows no row and no text."""

from dataclasses import fields

import pyarrow as pa
import pytest

from understudy.data.instructions import InstructionRows
from understudy.data.tables import ClientRows, LabelledRows
from understudy.evaluation.rows import LabelledTexts
from understudy.generation.instructions import Pair
from understudy.runs.split import SplitRows

TEXT = "the patient is Zibby"


def value_of(annotation: str):
    if "Table" in annotation:
        return pa.table({"text": [TEXT]})
    return [TEXT] if "[" in annotation else TEXT


@pytest.mark.parametrize("kind", [SplitRows, LabelledRows, ClientRows, InstructionRows, LabelledTexts, Pair])
def test_no_row_is_shown(kind):
    holding = {one.name: value_of(str(one.type)) for one in fields(kind) if "Table" in str(one.type) or not one.repr}
    others = {one.name: None for one in fields(kind) if one.name not in holding}
    assert holding
    assert "Zibby" not in repr(kind(**holding, **others))
