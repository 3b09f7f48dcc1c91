"""The projection against a slow reference, its fixed points, and the tokens that it may choose."""

import unicodedata

import numpy as np
import pytest
import random_models
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import FAMILIES

from understudy.errors import InputError
from understudy.methods.gradient_matching.projection import (
    allowed_tokens,
    check_projection,
    l2_projection,
    top_k_projection,
    top_tokens,
)
from understudy.models.loading import load_model

VOCABULARY, WIDTH, CONTEXT = 60, 32, 48
PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14], [15]]


def random_model(family: str, seed: int = 0):
    wide = {"initializer_range": 0.2, "tie_word_embeddings": family == "gpt2"}
    own = {"init_std": 0.2, "word_embed_proj_dim": 16} if family == "opt" else wide
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    sizes = {"vocabulary": VOCABULARY, "width": WIDTH, "positions": CONTEXT, "heads": 4}
    return random_models.random_model(family, seed=seed, **sizes, **ends, **own)


def left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[1] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def some_allowed() -> torch.Tensor:
    allowed = torch.ones(VOCABULARY, dtype=torch.bool)
    allowed[:3] = False
    allowed[20:25] = False
    return allowed


def random_rows(model, batch: int, length: int, seed: int = 0, scale: float = 0.2) -> torch.Tensor:
    width = model.get_input_embeddings().weight.shape[1]
    return scale * torch.randn(batch, length, width, generator=torch.Generator().manual_seed(seed))


def slow_reference(model, row, prompt, *, allowed, k, metric) -> list[int]:
    """One example, one position after the other, everything read anew, plain Python and float64 distances."""
    table = model.get_input_embeddings().weight.detach().double().numpy()
    ids: list[int] = []
    for target in row.double().numpy():
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, -1].tolist()
        candidates = sorted((t for t in range(VOCABULARY) if allowed[t]), key=lambda t: (-logits[t], t))[:k]

        def distance(token, target=target):
            if metric == "l2":
                return float(((table[token] - target) ** 2).sum())
            return 1 - float(table[token] @ target / np.linalg.norm(table[token]) / np.linalg.norm(target))

        ids.append(min(candidates, key=lambda t: (distance(t), t)))
    return ids


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_projection_equals_a_loop_without_cache_token_for_token(family, metric):
    model, allowed = random_model(family), some_allowed()
    rows = random_rows(model, len(PROMPTS), 12)
    found = top_k_projection(model, rows, prompts=left_padded(PROMPTS), allowed=allowed, k=9, metric=metric)
    expected = [
        slow_reference(model, row, prompt, allowed=allowed, k=9, metric=metric)
        for row, prompt in zip(rows, PROMPTS, strict=True)
    ]
    assert found.token_ids.tolist() == expected
    assert torch.equal(found.embeddings, model.get_input_embeddings()(found.token_ids))
    assert bool(allowed[found.token_ids].all())
    assert len({tuple(ids) for ids in expected}) == len(PROMPTS)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    k=st.integers(1, VOCABULARY - 8),
    metric=st.sampled_from(["l2", "cosine"]),
    family=st.sampled_from(["gpt2", "llama"]),
    scale=st.sampled_from([1e-3, 0.2, 30.0]),
)
def test_projection_is_idempotent(seed, k, metric, family, scale):
    model = MODELS[family]
    options = {"prompts": left_padded(PROMPTS), "allowed": some_allowed(), "k": k, "metric": metric}
    once = top_k_projection(model, random_rows(model, len(PROMPTS), 8, seed, scale), **options)
    twice = top_k_projection(model, once.embeddings, **options)
    assert twice.token_ids.tolist() == once.token_ids.tolist()
    nearest = l2_projection(model, once.embeddings, allowed=some_allowed())
    assert nearest.token_ids.tolist() == once.token_ids.tolist()


MODELS = {family: random_model(family) for family in FAMILIES[:2]}


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_of_twin_embeddings_the_lowest_proposed_id_is_chosen_and_stays(metric):
    model = random_model("llama", seed=3)
    with torch.no_grad():
        model.get_input_embeddings().weight[40:50] = model.get_input_embeddings().weight[30:40]
    options = {"prompts": left_padded(PROMPTS), "allowed": some_allowed(), "k": 52, "metric": metric}
    twins = model.get_input_embeddings()(torch.arange(40, 48)).repeat(len(PROMPTS), 1, 1)
    once = top_k_projection(model, twins, **options)
    assert once.token_ids.tolist() == [list(range(30, 38))] * len(PROMPTS)
    assert torch.equal(top_k_projection(model, once.embeddings, **options).token_ids, once.token_ids)
    assert l2_projection(model, twins, allowed=some_allowed()).token_ids.tolist() == once.token_ids.tolist()


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_almost_equal_embeddings_are_told_apart(metric):
    model = random_model("llama", seed=3)
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        noise = torch.randn(10, WIDTH, generator=torch.Generator().manual_seed(0))
        weight[40:50] = weight[30:40] + 2e-5 * noise
    options = {"prompts": left_padded(PROMPTS), "allowed": some_allowed(), "k": 52, "metric": metric}
    rows = model.get_input_embeddings()(torch.arange(40, 48)).repeat(len(PROMPTS), 1, 1)
    expected = [list(range(40, 48))] * len(PROMPTS)
    assert top_k_projection(model, rows, **options).token_ids.tolist() == expected
    assert l2_projection(model, rows, allowed=some_allowed()).token_ids.tolist() == expected


def test_one_proposal_is_greedy_decoding():
    model, everything = random_model("llama"), torch.ones(VOCABULARY, dtype=torch.bool)
    found = top_k_projection(
        model, random_rows(model, 2, 10), prompts=left_padded([[5, 6]] * 2), allowed=everything, k=1
    )
    greedy = model.generate(
        torch.tensor([[5, 6]]),
        attention_mask=torch.ones(1, 2, dtype=torch.int64),
        max_new_tokens=10,
        min_new_tokens=10,
        do_sample=False,
        eos_token_id=None,
    )
    assert found.token_ids.tolist() == [greedy[0, 2:].tolist()] * 2


def test_all_allowed_tokens_as_proposals_is_the_projection_without_the_model():
    model, allowed = random_model("gpt2"), some_allowed()
    rows = random_rows(model, len(PROMPTS), 10, seed=4)
    with_model = top_k_projection(model, rows, prompts=left_padded(PROMPTS), allowed=allowed, k=int(allowed.sum()))
    assert torch.equal(with_model.token_ids, l2_projection(model, rows, allowed=allowed).token_ids)


def test_an_example_does_not_depend_on_its_batch_mates():
    model, allowed = random_model("llama"), some_allowed()
    rows = random_rows(model, len(PROMPTS), 12, seed=5)
    together = top_k_projection(model, rows, prompts=left_padded(PROMPTS), allowed=allowed, k=7)
    for row, prompt, ids in zip(rows, PROMPTS, together.token_ids, strict=True):
        alone = top_k_projection(model, row[None], prompts=left_padded([prompt]), allowed=allowed, k=7)
        assert alone.token_ids[0].tolist() == ids.tolist()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(1, 12))
def test_top_tokens_by_definition(data, size):
    logits = data.draw(st.lists(st.sampled_from([-2.0, 0.0, 0.5, 3.0]), min_size=size, max_size=size))
    allowed = data.draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    k = data.draw(st.integers(1, sum(allowed)))
    best = sorted((t for t in range(size) if allowed[t]), key=lambda t: (-logits[t], t))[:k]
    # Two rows of the model stand for no token, as where its embeddings are padded to a round number.
    found = top_tokens(torch.tensor([[*logits, 9.0, 9.0]]), allowed=torch.tensor(allowed), k=k)
    assert found.tolist() == [sorted(best)]


def test_projection_without_the_model_is_the_nearest_allowed_token():
    model, allowed = random_model("opt"), some_allowed()
    rows = random_rows(model, 40, 11, seed=6)  # more rows than are held at a time
    table = model.get_input_embeddings().weight.detach().double().numpy()
    differences = rows.double().numpy()[:, :, None, :] - table
    distances = np.where(allowed.numpy(), (differences**2).sum(-1), np.inf)
    assert l2_projection(model, rows, allowed=allowed).token_ids.tolist() == distances.argmin(-1).tolist()


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_printable_tokens_decode_to_printable_text_and_special_ones_never_count(name):
    tokenizer = load_model(name).tokenizer
    everything, printable = allowed_tokens(tokenizer, "all"), allowed_tokens(tokenizer, "printable")
    assert {t for t in range(len(tokenizer)) if not everything[t]} == set(tokenizer.all_special_ids)
    assert not bool((printable & ~everything).any())
    assert int(printable.sum()) > 0.9 * len(tokenizer)
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        bad = text == "" or any((c != " " and unicodedata.category(c)[0] in "CZ") or c == "\ufffd" for c in text)
        assert bool(printable[token]) == (bool(everything[token]) and not bad), repr(text)
    newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
    assert bool(everything[newline])
    assert not bool(printable[newline])


def test_printable_tokens_in_any_order_give_printable_text():
    tokenizer = load_model("tiny-llama").tokenizer
    ids = allowed_tokens(tokenizer, "printable").nonzero()[:, 0]
    drawn = ids[torch.randint(len(ids), (200, 20), generator=torch.Generator().manual_seed(0))]
    texts = tokenizer.batch_decode(drawn, clean_up_tokenization_spaces=False)
    assert all(text.isprintable() and "\ufffd" not in text for text in texts)


def test_more_proposals_than_allowed_tokens_are_refused():
    model = random_model("gpt2")
    with pytest.raises(InputError, match=r"projection\.k=53.*found 52"):
        top_k_projection(model, random_rows(model, 4, 3), prompts=left_padded(PROMPTS), allowed=some_allowed(), k=53)
    nothing = torch.zeros(VOCABULARY, dtype=torch.bool)
    with pytest.raises(InputError, match="found 0"):
        check_projection(model, prompt_width=0, length=3, allowed=nothing, k=1, kind="l2")


def test_text_beyond_the_context_is_refused():
    model = random_model("gpt2")
    rows = random_rows(model, 4, CONTEXT - 4)
    with pytest.raises(InputError, match="length=44"):
        top_k_projection(model, rows, prompts=left_padded(PROMPTS), allowed=some_allowed(), k=3)
    check = {"prompt_width": 5, "length": CONTEXT - 5, "allowed": some_allowed(), "k": 52}
    check_projection(model, **check)
    check_projection(model, **{**check, "length": 500, "k": 500}, kind="l2")
