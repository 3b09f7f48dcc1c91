"""What one unit holds moves no bit of another's gradient: not its length, and not by standing in for missing rows."""

import pytest
import torch
from random_models import random_model
from transformers import MixtralConfig, MixtralForCausalLM

from understudy.errors import InputError
from understudy.generation import scoring
from understudy.generation.step import last_states
from understudy.models import lora
from understudy.models.attention import SDPA_OF_BFLOAT16
from understudy.models.lora import trainable_parameters
from understudy.privacy.dpsgd.layers import check_layers
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


# Rotary embeddings of another base once a text of more than 24 tokens is among those that are read together.
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
    "original_max_position_embeddings": 24,
}


@pytest.fixture(
    params=[
        (torch.float32, "sdpa", None),
        (torch.bfloat16, "sdpa", None),
        (torch.bfloat16, SDPA_OF_BFLOAT16, None),
        (torch.float32, "sdpa", LONG_ROPE),
    ],
    ids=["float32", "bfloat16", "bfloat16 with attention of its own", "LongRoPE"],
)
def grouped(request):
    """A model with grouped key/value heads, for which a batch without a gap takes another way through attention."""
    dtype, attention, rope = request.param
    more = {} if rope is None else {"rope_parameters": rope}
    model = random_model(
        "llama", vocabulary=60, width=48, positions=64, layers=3, heads=6, num_key_value_heads=2, **more
    )
    model.set_attn_implementation(attention)
    return model.to(dtype)


def test_states_of_short_rows_do_not_depend_on_a_full_one(grouped):
    """The other way round: where all are short, the first alone may be longer than what the model was made for."""
    full, short = texts(), texts(first=5)
    for rows in (full, short):
        rows["attention_mask"][1:, 5:] = 0
    with torch.no_grad():
        beside_full, beside_short = (
            last_states(grouped, rows["input_ids"], rows["attention_mask"])[1:, :5] for rows in (full, short)
        )
    assert torch.equal(beside_full, beside_short)


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


@pytest.mark.parametrize("experts", [2, 4])
def test_a_mixture_of_experts_is_refused(experts):
    """An expert multiplies the tokens of all rows that are sent to it together."""
    sizes = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    mixture = MixtralForCausalLM(MixtralConfig(**sizes, **heads, num_local_experts=experts))
    with pytest.raises(InputError, match=f"mixture of {experts} experts"):
        check_layers(mixture)
    check_layers(random_model("llama", vocabulary=60, width=16, positions=8))
