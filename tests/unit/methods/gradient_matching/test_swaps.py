"""Swaps against brute force on an objective that is linear, and the properties that hold for any."""

import itertools

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from understudy.generation.prompts import position_ids
from understudy.methods.gradient_matching import swaps
from understudy.methods.gradient_matching.swaps import any_token, likely_tokens, swap_tokens

VOCABULARY, LENGTH, BATCH = 11, 4, 3
GENERATOR = torch.Generator().manual_seed(5)
TABLE = torch.randn(VOCABULARY, 6, generator=GENERATOR)
WEIGHTS = torch.randn(BATCH, LENGTH, 6, generator=GENERATOR)
START = torch.randint(VOCABULARY, (BATCH, LENGTH), generator=GENERATOR)
ANY = any_token(torch.ones(VOCABULARY, dtype=torch.bool), VOCABULARY)


def linear(x):
    return (WEIGHTS * x).flatten(1).sum(1)


def curved(x):
    return torch.sin(3 * WEIGHTS * x).flatten(1).sum(1) + (x.mean(1) ** 2).sum(1)


def value(f, tokens):
    return f(TABLE[tokens])


def test_one_position_at_a_time_takes_the_best_single_swap_of_a_linear_objective():
    found = swap_tokens(linear, ANY, START, table=TABLE, sweeps=1, width=1)
    for row in range(BATCH):
        tries = []
        for place, token in itertools.product(range(LENGTH), range(VOCABULARY)):
            other = START.clone()
            other[row, place] = token
            tries.append((value(linear, other)[row].item(), other[row].tolist()))
        assert found.losses[row, 1].item() == pytest.approx(min(tries)[0])
        assert found.token_ids[row].tolist() == min(tries)[1]


def test_all_positions_at_once_reach_the_least_of_a_linear_objective():
    found = swap_tokens(linear, ANY, START, table=TABLE, sweeps=1, width=LENGTH + 5)
    least = torch.einsum("bld,vd->blv", WEIGHTS, TABLE).min(2)
    assert torch.equal(found.token_ids, least.indices)
    torch.testing.assert_close(found.losses[:, 1], least.values.sum(1))


@pytest.mark.parametrize("width", [1, 3])
def test_f_never_rises_and_is_that_of_the_tokens(width):
    found = swap_tokens(curved, ANY, START, table=TABLE, sweeps=12, width=width)
    assert found.losses.shape == (BATCH, 13)
    assert bool((found.losses.diff(dim=1) <= 0).all())
    assert bool((found.losses[:, -1] < found.losses[:, 0]).all())
    torch.testing.assert_close(found.losses[:, -1], value(curved, found.token_ids))
    torch.testing.assert_close(found.losses[:, 0], value(curved, START))


def test_only_proposals_are_put_in_and_none_twice():
    allowed = torch.zeros(VOCABULARY, dtype=torch.bool)
    allowed[[1, 4]] = True
    seen: list[torch.Tensor] = []

    def watched(x):
        # Tokens are told apart by their embeddings.
        seen.append(torch.cdist(x.detach().flatten(0, 1), TABLE).argmin(1).view(x.shape[:2]))
        return curved(x)

    found = swap_tokens(watched, any_token(allowed, VOCABULARY), START, table=TABLE, sweeps=9, width=1)
    new = found.token_ids != START
    assert bool(new.any())
    assert bool(allowed[found.token_ids[new]].all())
    # Two proposals per place and text at most: after 2 x LENGTH sweeps nothing is left to try.
    assert torch.equal(found.losses[:, 2 * LENGTH], found.losses[:, -1])
    assert torch.equal(seen[-1], found.token_ids)


def test_a_flat_objective_and_no_sweeps_change_nothing():
    flat = swap_tokens(lambda x: 1 + 0 * x.flatten(1).sum(1), ANY, START, table=TABLE, sweeps=3, width=2)
    none = swap_tokens(curved, ANY, START, table=TABLE, sweeps=0, width=2)
    assert torch.equal(flat.token_ids, START)
    assert torch.equal(none.token_ids, START)
    assert none.losses.shape == (BATCH, 1)


def test_a_sweep_keeps_the_swaps_that_help_beside_those_kept_before():
    """Positions in the order of their promise, each judged on what is there by then; by hand for every text."""
    found = swap_tokens(curved, ANY, START, table=TABLE, sweeps=1, width=LENGTH)
    x = TABLE[START].requires_grad_()
    (slope,) = torch.autograd.grad(curved(x).sum(), x)
    for row in range(BATCH):
        promise = []
        for place in range(LENGTH):
            changes = [
                (float(slope[row, place] @ (TABLE[token] - TABLE[START[row, place]])), token)
                for token in range(VOCABULARY)
                if token != START[row, place]
            ]
            promise.append((*min(changes), place))
        text = START.clone()
        for _, token, place in sorted(promise):
            other = text.clone()
            other[row, place] = token
            if value(curved, other)[row] < value(curved, text)[row]:
                text = other
        assert torch.equal(found.token_ids[row], text[row])
        assert found.losses[row, 1] == value(curved, text)[row]


def test_texts_are_searched_on_their_own():
    whole = swap_tokens(curved, ANY, START, table=TABLE, sweeps=6, width=2)
    for row in range(BATCH):

        def alone(x, row=row):
            return torch.sin(3 * WEIGHTS[row : row + 1] * x).flatten(1).sum(1) + (x.mean(1) ** 2).sum(1)

        found = swap_tokens(alone, ANY, START[row : row + 1], table=TABLE, sweeps=6, width=2)
        assert torch.equal(found.token_ids[0], whole.token_ids[row])


def test_every_position_has_proposals_of_its_own():
    """The best of the swaps that are proposed for each position, by hand."""
    proposals = torch.stack([torch.randperm(VOCABULARY, generator=GENERATOR)[:3] for _ in range(BATCH * LENGTH)])
    proposals = proposals.view(BATCH, LENGTH, 3).sort().values
    found = swap_tokens(linear, lambda _: proposals, START, table=TABLE, sweeps=1, width=LENGTH)
    values = torch.einsum("bld,vd->blv", WEIGHTS, TABLE)
    may_stand = (
        torch.zeros(values.shape, dtype=torch.bool).scatter(2, proposals, True).scatter(2, START[..., None], True)
    )
    assert torch.equal(found.token_ids, values.masked_fill(~may_stand, torch.inf).argmin(2))


def test_proposals_that_are_alike_may_be_given_once():
    ids = torch.tensor([1, 2, 4, 7, 10])
    each = ids.expand(BATCH, LENGTH, -1)
    once = swap_tokens(curved, lambda _: ids, START, table=TABLE, sweeps=9, width=2)
    found = swap_tokens(curved, lambda _: each, START, table=TABLE, sweeps=9, width=2)
    assert torch.equal(found.token_ids, once.token_ids)
    assert not torch.equal(found.token_ids, START)


@pytest.mark.parametrize("held", [1, 3 * VOCABULARY, 1 << 22])
@pytest.mark.parametrize("length", [1, LENGTH])
def test_proposals_are_the_k_likeliest_after_the_tokens_before(held, length, monkeypatch):
    monkeypatch.setattr(swaps, "_LOGITS", held)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=8, n_layer=2, n_head=2, n_positions=16)).eval()
    prompts = torch.tensor([[0, 3, 5], [2, 7, 1]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    allowed = torch.ones(VOCABULARY, dtype=torch.bool)
    allowed[9] = False
    found = likely_tokens(model, prompts, allowed=allowed, k=3)(START[:2, :length])
    for row, place in itertools.product(range(2), range(length)):
        ids = torch.cat([prompts[0][row], START[row, :place]])[None]
        mask = torch.cat([prompts[1][row], torch.ones(place, dtype=torch.long)])[None]
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask, position_ids=position_ids(mask)).logits[0, -1]
        logits[9] = -torch.inf
        assert found[row, place].tolist() == sorted(logits.topk(3).indices.tolist())
