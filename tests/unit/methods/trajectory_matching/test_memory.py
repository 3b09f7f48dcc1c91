"""How many rows of a student's step pass at a time."""

import pytest

from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.memory import pass_bytes, rows_per_pass
from understudy.methods.trajectory_matching.method import METHOD
from understudy.models.shape import ModelShape, model_shape

BIG = ModelShape(30, 576, 576, 192, 1536, True, 49_152, 134_515_008)
SMALL = model_shape("tiny-llama")


def config(rows="auto", length=72, batch=8):
    return TrajectoryMatchingConfig(max_length=length, distil={"micro_batch": rows, "batch_size": batch})


@pytest.mark.parametrize(
    ("shape", "length", "batch", "rows"),
    [
        (SMALL, 96, 8, 8),
        (SMALL, 96, 6, 6),  # no power of two, but all of it has room
        (SMALL, 512, 6, 4),
        (BIG, 72, 8, 2),
        (BIG, 2048, 8, 1),  # one row passes, whatever it takes
        (None, 2048, 8, 8),
    ],
)
def test_as_many_rows_pass_as_have_room(shape, length, batch, rows):
    assert rows_per_pass(config(length=length, batch=batch), shape) == rows


@pytest.mark.parametrize(("rows", "measured"), [(2, 1.7), (8, 6.9)])
def test_the_prediction_is_near_what_was_measured_with_smollm2(rows, measured):
    """GiB of the process above a loaded model: docs/results/trajectory-matching.md."""
    assert pass_bytes(config(), BIG, rows) / 2**30 == pytest.approx(measured, rel=0.1)


def test_a_number_takes_the_place_of_auto_and_a_given_one_stays():
    resolved = METHOD.preparation.resolve(config(), 100, ())
    assert resolved.distil.rows_at_once == 8
    assert resolved.carriers_digest, "what the run looked at is fixed beside it"
    same = {"carriers_digest": resolved.carriers_digest}
    assert resolved.model_copy(update={"distil": config().distil}) == config().model_copy(update=same)
    assert METHOD.preparation.resolve(config(3), 100, ()) == config(3).model_copy(update=same)
    assert config().distil.rows_at_once is None


def test_how_many_rows_pass_is_no_part_of_the_charge():
    charged = {METHOD.charge.settings(config(rows)).model_dump_json() for rows in ("auto", 2, 8)}
    assert len(charged) == 1
