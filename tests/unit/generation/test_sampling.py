import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.errors import InputError, UnderstudyError
from understudy.generation import nucleus
from understudy.generation.config import SamplingConfig
from understudy.generation.nucleus import draw_tokens, keep_nucleus
from understudy.generation.prompts import position_ids, row_seeds
from understudy.generation.sampling import backbone, head, sample
from understudy.models import lora

EOS = 0


def nucleus_by_definition(probabilities: torch.Tensor, top_p: float) -> set[int]:
    """The smallest set of most likely tokens whose mass reaches top_p, ties to the lower id."""
    order = sorted(range(len(probabilities)), key=lambda i: (-float(probabilities[i]), i))
    kept, mass = set(), 0.0
    for token in order:
        kept.add(token)
        mass += float(probabilities[token])
        if mass >= top_p:
            break
    return kept


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.sampled_from([1, 2, 3, 8, 64]), min_size=2, max_size=12),
    top_p=st.floats(0.01, 0.99),
)
def test_nucleus_is_the_smallest_set_that_reaches_its_mass(weights, top_p):
    probabilities = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    mask = keep_nucleus(probabilities[None], top_p=top_p)[0]
    assert set(mask.nonzero()[:, 0].tolist()) == nucleus_by_definition(probabilities, top_p)


def test_nucleus_wider_than_the_first_look_is_exact():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(torch.randn(3, 5000, generator=generator, dtype=torch.float64), -1)
    mask = keep_nucleus(probabilities, top_p=0.95)
    for row in range(3):
        kept = set(mask[row].nonzero()[:, 0].tolist())
        assert len(kept) > 1024
        assert kept == nucleus_by_definition(probabilities[row], 0.95)


def test_draws_follow_the_nucleus_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf]])
    uniforms = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    drawn = draw_tokens(logits.expand(20_000, -1), uniforms, temperature=0.5, top_p=0.99)
    weights = torch.softmax(logits[0] / 0.5, -1)
    weights[3] = 0  # .9965 of the mass lies on the first three
    expected = weights / weights.sum()
    share = torch.bincount(drawn, minlength=5) / 20_000
    assert torch.allclose(share, expected, atol=1e-4)


def test_the_largest_uniform_draws_a_token_of_the_nucleus():
    logits = torch.randn(64, 97, generator=torch.Generator().manual_seed(1))
    drawn = draw_tokens(logits, torch.full((64,), 1 - 2.0**-53), temperature=1.0, top_p=0.3)
    mask = keep_nucleus(logits.softmax(-1), top_p=0.3)
    assert bool(mask.gather(1, drawn[:, None]).all())


def test_special_tokens_that_the_model_has_no_row_for_are_passed_over(random_model):
    """As of text models whose tokenizer also knows a token for images."""
    ids = torch.tensor([[3, 4]])
    prompts, config = (ids, torch.ones_like(ids)), SamplingConfig(max_new_tokens=6, temperature=1.0)
    plain = sample(random_model, prompts, config=config, seeds=[7], eos=EOS, forbidden=[1])
    assert sample(random_model, prompts, config=config, seeds=[7], eos=EOS, forbidden=[1, 50, 51]) == plain


@pytest.mark.parametrize("top_p", [0.02, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("sharpness", [0.1, 2.0, 6.0])
def test_draws_in_pieces_of_likely_tokens_are_draws_by_definition(sharpness, top_p, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = sharpness * torch.randn(9, 600, generator=generator, dtype=torch.float64)
    logits[:, ::7] = -torch.inf
    uniforms = torch.rand(9, generator=generator, dtype=torch.float64)
    monkeypatch.setattr(nucleus, "_TOGETHER", 2 * 600)
    drawn = draw_tokens(logits, uniforms, temperature=1.0, top_p=top_p).tolist()
    for row, uniform, token in zip(logits.softmax(-1), uniforms.tolist(), drawn, strict=True):
        kept = sorted(nucleus_by_definition(row, top_p) if top_p < 1 else set(row.nonzero()[:, 0].tolist()))
        ends = list(itertools.accumulate(float(row[one]) for one in kept))
        assert token == next(one for one, end in zip(kept, ends, strict=True) if end > uniform * ends[-1])


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.sampled_from([1, 2, 3, 8, 64]), min_size=2, max_size=200),
    top_p=st.floats(0.01, 1),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_of_equal_tokens_at_the_border_the_first_are_drawn(weights, top_p, uniform):
    logits = torch.tensor(weights, dtype=torch.float64).log()[None]
    row = logits[0].softmax(-1)
    kept = sorted(nucleus_by_definition(row, top_p) if top_p < 1 else range(len(weights)))
    ends = list(itertools.accumulate(float(row[one]) for one in kept))
    wanted = {
        next((one for one, end in zip(kept, ends, strict=True) if end > share * ends[-1]), kept[-1])
        for share in (uniform * (1 - 1e-12), min(uniform * (1 + 1e-12), 1))  # sums in another order differ by less
    }
    assert int(draw_tokens(logits, torch.tensor([uniform]).double(), temperature=1.0, top_p=top_p)) in wanted


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 2502), (1.0, 5003)])
def test_probabilities_in_float32_are_added_up_in_float64(top_p, kept):
    """Of 5003 equal tokens: a millionth of a token beside a border the draw is the right one."""
    borders = torch.arange(1, kept, 37, dtype=torch.float64)
    for places in (borders - 1e-6, borders + 1e-6):
        logits = torch.zeros(1, 5003).expand(len(places), -1)
        drawn = draw_tokens(logits, places / kept, temperature=1.0, top_p=top_p)
        assert torch.equal(drawn, places.long())


def test_no_token_without_weight_is_drawn_where_rounding_hides_its_whole_block():
    """Half of a last bit and many far smaller weights: added up by themselves first they count, in turn they do not."""
    weights = np.zeros(2 * nucleus._BLOCK)
    weights[0] = 0.75
    weights[nucleus._BLOCK + 1 :] = 2.0**-108
    weights[nucleus._BLOCK + 1] = 2.0**-54
    sums = nucleus._sums_of_blocks(weights)
    for target in (*sums, 0.75 + 2.0**-53):
        assert weights[nucleus._first(weights, sums, target, side="right")] > 0
    assert weights[nucleus._place(weights, 1 - 2.0**-53)] > 0


def test_no_rows_draw_no_tokens():
    drawn = draw_tokens(torch.zeros(0, 5), torch.zeros(0, dtype=torch.float64), temperature=1.0, top_p=0.9)
    assert (drawn.dtype, drawn.shape) == (torch.int64, (0,))


def test_a_model_that_gives_no_numbers_is_refused():
    logits = torch.zeros(3, 8)
    logits[1] = torch.nan
    with pytest.raises(UnderstudyError, match="diverged"):
        draw_tokens(logits, torch.full((3,), 0.5, dtype=torch.float64), temperature=1.0, top_p=0.9)


def left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[1] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


PROMPTS = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [12], [13, 14], [15, 16, 17], [18, 19], [20, 21, 22, 23, 24]]


def test_a_row_does_not_depend_on_its_batch_mates(random_model):
    config = SamplingConfig(max_new_tokens=24, top_p=0.95)
    seeds = row_seeds(0, range(len(PROMPTS)), purpose="test")
    together = sample(random_model, left_padded(PROMPTS), config=config, seeds=seeds, eos=EOS)
    alone = [
        sample(random_model, left_padded([prompt]), config=config, seeds=[seed], eos=EOS)[0]
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert together == alone
    assert len({len(row) for row in together}) > 2  # rows did leave the batch at different times


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_a_row_does_not_depend_on_whose_place_it_takes(random_model, batch_size):
    """Rows begin in the middle of others, behind prompts of other lengths, and outlive the columns of the cache."""
    config = SamplingConfig(max_new_tokens=20, top_p=0.95)
    prompts = left_padded(PROMPTS * 2)
    seeds = row_seeds(0, range(16), purpose="test")
    told = []
    refilled = sample(
        random_model,
        prompts,
        config=config,
        seeds=seeds,
        eos=EOS,
        batch_size=batch_size,
        progress=lambda done, total: told.append((done, total)),
    )
    assert refilled == sample(random_model, prompts, config=config, seeds=seeds, eos=EOS)
    assert told == sorted(set(told))
    assert told[-1] == (16, 16)


def test_rows_in_flight_stay_as_many_as_asked_for_while_others_wait(random_model):
    seen = []

    def counting(_, step):
        seen.append(step.rows.tolist())
        return step.logits

    config = SamplingConfig(max_new_tokens=24, top_p=0.95)
    rows = sample(
        random_model, left_padded(PROMPTS), config=config, seeds=range(8), eos=EOS, step_hook=counting, batch_size=3
    )
    last = next(number for number, flight in enumerate(seen) if 7 in flight)
    assert {len(flight) for flight in seen[:last]} == {3}
    # One pass per token and row, an ending EOS included: nothing is read for a row that is done.
    assert sum(map(len, seen)) == sum(len(row) + (len(row) < 24) for row in rows)


def test_neither_prompts_nor_tokens_are_read_with_a_graph(random_model):
    """A graph would keep every layer's activations of every prompt that is read."""
    graphs = []
    handle = random_model.get_input_embeddings().register_forward_hook(
        lambda *_: graphs.append(torch.is_grad_enabled())
    )
    config = SamplingConfig(max_new_tokens=6, top_p=0.95)
    sample(random_model, left_padded(PROMPTS), config=config, seeds=range(8), eos=EOS, batch_size=3)
    handle.remove()
    assert set(graphs) == {False}


def test_equal_prompts_are_read_once(random_model):
    read = []
    handle = random_model.get_input_embeddings().register_forward_hook(lambda _, __, output: read.append(output.shape))
    prompts = left_padded([PROMPTS[0], PROMPTS[2]] * 4)
    config = SamplingConfig(max_new_tokens=6, top_p=0.95)
    sample(random_model, prompts, config=config, seeds=range(8), eos=EOS, batch_size=2)
    handle.remove()
    assert [shape[:2] for shape in read if shape[1] > 1] == [(2, 3)]  # two prompts, without their last tokens


def test_cached_sampling_equals_a_loop_that_reads_everything_anew(random_model):
    config = SamplingConfig(max_new_tokens=12, temperature=0.7, top_p=0.8)
    drawn = sample(random_model, left_padded(PROMPTS[2:3]), config=config, seeds=[5], eos=EOS)[0]
    uniforms = torch.rand(12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ids = list(PROMPTS[2])
    for uniform in uniforms:
        with torch.no_grad():
            logits = random_model(input_ids=torch.tensor([ids])).logits[:, -1]
        token = int(draw_tokens(logits, uniform[None], temperature=0.7, top_p=0.8))
        if token == EOS:
            break
        ids.append(token)
    assert drawn == ids[len(PROMPTS[2]) :]


def test_forbidden_tokens_and_eos_are_never_returned(random_model):
    config = SamplingConfig(max_new_tokens=20, top_p=1.0, temperature=5.0)
    prompts = left_padded([[3, 4]] * 16)
    rows = sample(random_model, prompts, config=config, seeds=range(16), eos=EOS, forbidden=(EOS, 1, 2))
    assert {1, 2} & {
        token for row in sample(random_model, prompts, config=config, seeds=range(16), eos=EOS) for token in row
    }
    assert not {EOS, 1, 2} & {token for row in rows for token in row}
    assert any(len(row) < 20 for row in rows)  # EOS was still drawn


def test_adapters_are_seen_through(random_model):
    wrapped = lora.attach(copy.deepcopy(random_model), rank=2, alpha=2, generator=torch.Generator().manual_seed(0))
    assert hasattr(backbone(wrapped), "config")
    assert head(wrapped).weight.shape == (50, 32)
    config = SamplingConfig(max_new_tokens=4)
    rows = sample(wrapped, left_padded(PROMPTS[:2]), config=config, seeds=[0, 1], eos=EOS)
    plain = sample(wrapped.get_base_model(), left_padded(PROMPTS[:2]), config=config, seeds=[0, 1], eos=EOS)
    assert rows == plain  # adapters start as zero


def test_what_does_not_fit_the_context_is_refused(random_model):
    with pytest.raises(InputError, match="max_new_tokens=64"):
        sample(
            random_model,
            left_padded(PROMPTS[:1]),
            config=SamplingConfig(max_new_tokens=64),
            seeds=[0],
            eos=EOS,
        )


def test_each_prompt_needs_a_seed(random_model):
    with pytest.raises(InputError, match="one seed"):
        sample(random_model, left_padded(PROMPTS), config=SamplingConfig(max_new_tokens=4), seeds=[0], eos=EOS)


def test_the_global_generator_is_left_alone(random_model):
    before = torch.get_rng_state()
    sample(random_model, left_padded(PROMPTS), config=SamplingConfig(max_new_tokens=4), seeds=range(8), eos=EOS)
    assert torch.equal(before, torch.get_rng_state())


def test_left_padding_changes_no_hidden_state(random_model):
    ids, mask = left_padded(PROMPTS)
    with torch.no_grad():
        padded = backbone(random_model)(
            input_ids=ids, attention_mask=mask, position_ids=position_ids(mask)
        ).last_hidden_state[:, -1]
        for row, prompt in enumerate(PROMPTS):
            plain = backbone(random_model)(input_ids=torch.tensor([prompt])).last_hidden_state[0, -1]
            assert torch.allclose(padded[row], plain, atol=1e-5)
