"""The student's loss, and where pseudo tokens stand."""

import pytest
import torch
from torch.nn import functional

from understudy.generation.instructions import Pair
from understudy.methods.trajectory_matching.carriers import encoded
from understudy.methods.trajectory_matching.config import TrajectoryMatchingConfig
from understudy.methods.trajectory_matching.experts import expert_student
from understudy.methods.trajectory_matching.student import Rows
from understudy.models.loading import load_model

PAIRS = [Pair("is the ward clean", "yes"), Pair("how long did the visit to the ward take", "an hour or two")]


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("place", ["instruction", "row"])
def test_the_embeddings_of_tokens_are_read_as_the_tokens_at_their_place(model, place):
    base, config = load_model(model), TrajectoryMatchingConfig(max_length=64, distil={"place": place})
    student = expert_student(base.model, config, 0)
    pseudo = torch.tensor([base.tokenizer.encode("quite soon", add_special_tokens=False)] * 2)
    rows = encoded(PAIRS, base.tokenizer, config)
    before = base.tokenizer.decode(rows.input_ids[0, : rows.place])
    assert before.strip().endswith("Request:") if place == "instruction" else before == ""
    assert base.tokenizer.decode(rows.input_ids[0, rows.place :]).startswith(
        "is the ward" if place == "instruction" else base.tokenizer.decode(rows.input_ids[0, :1])
    )
    written = Rows(
        torch.cat([rows.input_ids[:, : rows.place], pseudo, rows.input_ids[:, rows.place :]], dim=1),
        functional.pad(rows.attention_mask, (pseudo.shape[1], 0), value=1),
        functional.pad(rows.loss_mask, (pseudo.shape[1], 0), value=False),
    )
    expected, found = student(written, None), student(rows, student.embed(pseudo))
    assert torch.allclose(found, expected, atol=1e-4)
    assert not torch.allclose(found, student(rows, None), atol=1e-4)
