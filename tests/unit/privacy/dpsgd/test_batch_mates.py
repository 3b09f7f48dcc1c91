"""What one unit holds moves no bit of another's gradient: not its length, and not by standing in for missing rows."""

import pytest
import torch
from random_models import random_model

from understudy.generation import scoring
from understudy.generation.step import last_states
from understudy.models import lora
from understudy.models.attention import SDPA_IN_FLOAT32
from understudy.models.lora import trainable_parameters
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum
from understudy.privacy.dpsgd.training import _micro_batches

ROWS, LENGTH = 16, 48


def texts(*, first: int = LENGTH) -> dict[str, torch.Tensor]:
    """Rows that are all full, but for the first, which has so many tokens."""
    ids = torch.randint(3, 60, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, first:] = 0
    loss_mask = mask.bool()
    loss_mask[:, 0] = False
    return {"input_ids": ids * mask, "attention_mask": mask, "loss_mask": loss_mask}


@pytest.fixture(params=[(torch.float32, "sdpa"), (torch.bfloat16, "sdpa"), (torch.bfloat16, SDPA_IN_FLOAT32)], ids=str)
def grouped(request):
    """A model with grouped key/value heads, for which a batch without a gap takes another way through attention."""
    dtype, attention = request.param
    model = random_model("llama", vocabulary=60, width=48, positions=64, layers=3, heads=6, num_key_value_heads=2)
    model.set_attn_implementation(attention)
    return model.to(dtype)


def test_states_of_full_rows_do_not_depend_on_a_short_one(grouped):
    with torch.no_grad():
        full, short = (
            last_states(grouped, rows["input_ids"], rows["attention_mask"]) for rows in (texts(), texts(first=5))
        )
    assert torch.equal(full[1:], short[1:])
    assert not torch.equal(full[0], short[0])


def test_gradients_of_full_rows_do_not_depend_on_a_short_one(grouped):
    adapted = lora.attach(grouped, rank=2, alpha=4, generator=torch.Generator().manual_seed(0))
    others = torch.arange(ROWS) > 0
    full, short = (
        clipped_gradient_sum(
            adapted, trainable_parameters(adapted), scoring.response_losses, rows, l2_clip_norm=1.0, valid=others
        )
        for rows in (texts(), texts(first=5))
    )
    for name, value in full.items():
        assert torch.equal(value, short[name]), name


def test_a_batch_that_is_filled_up_reads_no_row_that_was_not_drawn():
    mask = torch.zeros(ROWS, dtype=torch.bool)
    mask[[3, 7, 9, 11, 12]] = True
    found = []
    for rows in (texts(), texts(first=1)):
        data = {**rows, "valid": torch.ones(ROWS, dtype=torch.bool)}
        found.append(list(_micro_batches(data, mask, 0, size=3, device=torch.device("cpu"))))
    assert [batch["valid"].tolist() for batch in found[0]] == [[True] * 3, [True, True, False]]
    assert [batch["slot"].tolist() for batch in found[0]] == [[3, 7, 9], [11, 12, 0]]
    assert found[0][1]["attention_mask"][2].all(), "attention needs something to look at"
    assert not found[0][1]["input_ids"][2].any()
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
