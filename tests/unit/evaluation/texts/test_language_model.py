import numpy as np
import pytest
import torch
from torch.nn import functional

from understudy.evaluation.texts import language_model
from understudy.models.loading import load_model

TEXTS = ["the film was good", "bad", "a long and rather tedious story about nothing at all"]


@pytest.fixture(scope="module")
def loaded():
    return load_model("tiny-gpt2")


def test_encoding_starts_with_the_begin_token_and_is_cut(loaded):
    encoded = language_model.encode_texts(loaded.tokenizer, [*TEXTS, ""], max_length=6)
    start = loaded.tokenizer.bos_token_id
    assert all(ids[0] == start for ids in encoded)
    assert [len(ids) <= 6 for ids in encoded] == [True] * 4
    assert encoded[3] == [start]
    assert language_model.encode_texts(loaded.tokenizer, [], max_length=6) == []


def test_hidden_states_do_not_depend_on_the_batch(loaded):
    together = language_model.mean_hidden_states(loaded, TEXTS, batch_size=3)
    alone = np.concatenate([language_model.mean_hidden_states(loaded, [text]) for text in TEXTS])
    assert together.shape == (3, loaded.model.config.hidden_size)
    assert np.allclose(together, alone, atol=1e-5)


def test_hidden_states_are_the_mean_over_tokens(loaded):
    ids = torch.tensor(language_model.encode_texts(loaded.tokenizer, TEXTS[:1], max_length=64))
    with torch.no_grad():
        expected = loaded.model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0].mean(0)
    found = language_model.mean_hidden_states(loaded, TEXTS[:1])
    assert np.allclose(found[0], expected.numpy(), atol=1e-5)


def test_loss_is_per_token_not_per_row(loaded):
    """By hand: every text alone, token by token, then one mean over all tokens."""
    total, count = 0.0, 0
    for ids in language_model.encode_texts(loaded.tokenizer, TEXTS, max_length=64):
        row = torch.tensor([[*ids, loaded.tokenizer.eos_token_id]])
        with torch.no_grad():
            scores = functional.log_softmax(loaded.model(input_ids=row).logits[0], -1)
        total -= sum(float(scores[t - 1, row[0, t]]) for t in range(1, row.shape[1]))
        count += row.shape[1] - 1
    found = language_model.language_model_loss_of_texts(loaded, TEXTS, batch_size=2)
    assert found == pytest.approx(total / count, rel=1e-5)


def test_prompt_tokens_do_not_count(loaded):
    ids = torch.tensor([[0, 50, 60, 70, 80]])
    ones = torch.ones_like(ids)
    tail = torch.tensor([[0, 0, 0, 1, 1]])
    with torch.no_grad():
        scores = functional.log_softmax(loaded.model(input_ids=ids).logits[0], -1)
    by_hand = -(float(scores[2, 70]) + float(scores[3, 80])) / 2
    found = language_model.language_model_loss(loaded.model, ids, ones, tail)
    assert found == pytest.approx(by_hand, rel=1e-5)


def test_english_is_likelier_than_noise(loaded):
    noise = ["qzx vvk wqj xxq zzk jjw", "kkq zxv qqw jzx vkq"]
    losses = [language_model.language_model_loss_of_texts(loaded, texts) for texts in (TEXTS, noise)]
    assert losses[0] < losses[1]


def test_nothing_to_count_is_refused(loaded):
    ids = torch.tensor([[0, 5]])
    with pytest.raises(ValueError, match=r"loss_mask of \(1, 2\)"):
        language_model.language_model_loss(loaded.model, ids, torch.ones_like(ids), torch.tensor([[1, 0]]))
    with pytest.raises(ValueError, match="at least one text"):
        language_model.language_model_loss_of_texts(loaded, [])
