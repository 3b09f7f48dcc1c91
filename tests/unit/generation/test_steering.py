import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import nn
from transformers import DynamicCache

from understudy.generation.config import SamplingConfig, SteeringConfig
from understudy.generation.prompts import row_seeds
from understudy.generation.sampling import backbone, head, sample
from understudy.generation.steering import steer_towards
from understudy.generation.steering_length import length_within

EOS = 0
PROMPTS = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [12, 2], [13, 14], [15, 16, 17], [18, 19], [20, 21, 22, 23, 24]]
TARGETS = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
STRONG = {"steps": 4, "kl_budget": 1.0, "kl_weight": 0.05, "gm_scale": 0.9}
TRIAL = 0.01


def left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[1] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


@pytest.fixture
def discriminator() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    layers = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 2))
    for parameter in layers.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return layers.requires_grad_(False)


def steered(
    model, prompts, targets, discriminator, *, seeds, tokens=16, batch_size=None, representation="last", **constants
):
    hook = steer_towards(
        targets,
        config=SteeringConfig(**{**STRONG, **constants}),
        attribute=discriminator,
        representation=representation,
    )
    config = SamplingConfig(max_new_tokens=tokens, top_p=0.95)
    return sample(
        model, left_padded(prompts), config=config, seeds=seeds, eos=EOS, step_hook=hook, batch_size=batch_size
    )


@pytest.mark.parametrize("lookahead", [False, True])
@pytest.mark.parametrize("representation", ["last", "mean"])
@pytest.mark.parametrize("steer", ["key_value", "hidden"])
def test_a_row_does_not_depend_on_its_batch_mates(random_model, discriminator, steer, representation, lookahead):
    constants = {"steer": steer, "representation": representation, "lookahead": lookahead, "tokens": 5, "steps": 2}
    seeds = row_seeds(0, range(8), purpose="test")
    together = steered(random_model, PROMPTS, TARGETS, discriminator, seeds=seeds, **constants)
    for row in (1, 2, 7):  # the shortest prompt, one of four tokens, the longest
        (alone,) = steered(
            random_model, [PROMPTS[row]], TARGETS[row : row + 1], discriminator, seeds=[seeds[row]], **constants
        )
        assert together[row] == alone
    unsteered = steered(random_model, PROMPTS, TARGETS, discriminator, seeds=seeds, steer="none", tokens=5)
    assert sum(a != b for a, b in zip(together, unsteered, strict=True)) >= 4


@pytest.mark.parametrize("representation", ["last", "mean"])
@pytest.mark.parametrize(("steer", "window"), [("hidden", 0), ("key_value", 0), ("key_value", 2)])
def test_a_row_does_not_depend_on_whose_place_it_takes(random_model, discriminator, steer, representation, window):
    constants = {"steer": steer, "representation": representation, "window": window, "tokens": 10, "kl_budget": 0.1}
    constants["steps"] = 1
    seeds = row_seeds(0, range(24), purpose="test")
    together, refilled = (
        steered(random_model, PROMPTS * 3, TARGETS.repeat(3), discriminator, seeds=seeds, batch_size=size, **constants)
        for size in (None, 9)
    )
    assert together == refilled
    assert len({len(row) for row in together}) > 1  # rows did leave at different times


def read_anew(model, cache, prompt):
    """Last state of a prompt whose tokens but the last have these keys and values."""
    made = DynamicCache()
    for layer, (keys, values) in enumerate(cache):
        made.update(keys, values, layer)
    ids = torch.tensor([prompt[-1:]])
    position = torch.tensor([[len(prompt) - 1]])
    return backbone(model)(input_ids=ids, position_ids=position, past_key_values=made).last_hidden_state[0, -1]


def steered_by_definition(
    model, prompt, target, discriminator, *, steer, steps, kl_budget, kl_weight, gm_scale, window, layers
):
    """One row's distribution as METHODS say it: every pass anew, the KL term always, both distributions apart."""
    before = backbone(model)(input_ids=torch.tensor([prompt[:-1]]), use_cache=True).past_key_values
    past = [(layer.keys.detach(), layer.values.detach()) for layer in before.layers]
    plain = head(model)(read_anew(model, past, prompt)).log_softmax(-1).detach()
    if steer == "hidden":
        groups = [[read_anew(model, past, prompt).detach()]]
        masks = [torch.ones_like(groups[0][0])]
    else:
        still = past[: -math.ceil(layers * len(past))]
        groups = [list(pair) for pair in past[len(still) :]]
        masks = []
        for keys, _ in groups:
            masks.append(torch.zeros_like(keys))
            masks[-1][:, :, -window:] = 1

    def state(moved):
        if steer == "hidden":
            return moved[0][0]
        return read_anew(model, still + [tuple(group) for group in moved], prompt)

    shifts = [[torch.zeros_like(tensor) for tensor in group] for group in groups]
    for _ in range(steps):
        leaves = [[shift.clone().requires_grad_() for shift in group] for group in shifts]
        pairs = zip(groups, leaves, strict=True)
        hidden = state([[t + s for t, s in zip(group, leaf, strict=True)] for group, leaf in pairs])
        logp = head(model)(hidden).log_softmax(-1)
        gain = discriminator(hidden).log_softmax(-1)[target] - kl_weight * (logp.exp() * (logp - plain)).sum()
        slopes = iter(torch.autograd.grad(gain, [leaf for group in leaves for leaf in group]))
        for group, mask, shift in zip(groups, masks, shifts, strict=True):
            steep = [next(slopes) * mask for _ in group]
            length = TRIAL * torch.cat([(tensor * mask).flatten() for tensor in group]).norm()
            norm = torch.cat([slope.flatten() for slope in steep]).norm()
            shift[:] = [old + slope * length / norm for old, slope in zip(shift, steep, strict=True)]
    pairs = zip(groups, shifts, strict=True)
    before = read_anew(model, past, prompt).detach()
    moved = state([[t + s for t, s in zip(group, shift, strict=True)] for group, shift in pairs]).detach() - before

    def modified(length: float) -> torch.Tensor:
        return head(model)(before + length * moved).log_softmax(-1).detach()

    def excess(length: float) -> float:
        logp = modified(length)
        return float((logp.exp() * (logp - plain)).sum()) - kl_budget

    farthest = float(before.norm() / moved.norm())
    length = farthest if excess(farthest) <= 0 else brentq(excess, 0.0, farthest)
    return plain, (gm_scale * modified(length) + (1 - gm_scale) * plain).log_softmax(-1).detach()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    ("steer", "window", "layers"),
    [("hidden", 0, 1.0), ("key_value", 0, 1.0), ("key_value", 2, 1.0), ("key_value", 0, 0.5), ("key_value", 2, 0.3)],
)
def test_a_step_is_what_its_definition_says(random_model, discriminator, steer, window, layers, steps):
    constants = {"steer": steer, "window": window, "steps": steps, "kl_weight": 0.5, "gm_scale": 0.7, "kl_budget": 0.3}
    constants |= {"layers": layers}
    found = first_logits(random_model, discriminator, **constants)
    for row, (prompt, target) in enumerate(zip(PROMPTS, TARGETS, strict=True)):
        plain, expected = steered_by_definition(random_model, prompt, target, discriminator, **constants)
        moved, wanted = (part - plain - (part - plain).mean() for part in (found[row], expected))
        assert torch.cosine_similarity(moved, wanted, dim=0) > 0.9999
        assert 0.85 < moved.norm() / wanted.norm() < 1.001  # the search ends a little short of the budget


@pytest.mark.parametrize("steer", ["key_value", "hidden"])
@pytest.mark.parametrize("budget", [0.01, 0.3, 3.0])
def test_no_row_exceeds_its_budget(random_model, discriminator, steer, budget):
    plain = first_logits(random_model, discriminator, steer="none")
    moved = first_logits(random_model, discriminator, steer=steer, kl_budget=budget, gm_scale=1.0)
    divergence = (moved.exp() * (moved - plain)).sum(-1)
    assert bool((divergence <= budget * 1.001).all())
    assert budget == 3.0 or bool((divergence > 0.75 * budget).all())  # 3 nats are farther than a state may go


@given(
    logits=hnp.arrays(np.float32, (3, 7), elements=st.floats(-20, 20, width=32)),
    slope=hnp.arrays(np.float32, (3, 7), elements=st.floats(-5, 5, width=32)),
    budget=st.floats(1e-3, 5),
)
def test_the_divergence_of_what_is_chosen_is_within_the_budget(logits, slope, budget):
    plain, along = torch.from_numpy(logits), torch.from_numpy(slope)
    length = length_within(plain, along, budget=budget, farthest=torch.full((3,), 100.0))
    moved, before = (plain + length[:, None] * along).double().log_softmax(-1), plain.double().log_softmax(-1)
    assert bool(((moved.exp() * (moved - before)).sum(-1) <= budget * 1.01 + 1e-5).all())
    alone = [
        length_within(plain[i : i + 1], along[i : i + 1], budget=budget, farthest=torch.full((1,), 100.0))
        for i in range(3)
    ]
    assert torch.allclose(torch.cat(alone), length, rtol=1e-4)


@pytest.mark.parametrize("vocabulary", [500, 5_000, 70_000])
def test_a_length_is_the_same_whatever_stands_beside_its_row(vocabulary):
    """Rows are looked at in blocks: as many as fit a cache, and one of a large vocabulary."""
    generator = torch.Generator().manual_seed(0)
    logits, slope = (scale * torch.randn(20, vocabulary, generator=generator) for scale in (1.0, 0.5))
    farthest = torch.full((20,), 100.0)
    length = length_within(logits, slope, budget=0.3, farthest=farthest)
    alone = torch.cat(
        [
            length_within(*(part[i : i + 1] for part in (logits, slope)), budget=0.3, farthest=farthest[:1])
            for i in range(20)
        ]
    )
    assert torch.equal(alone, length)
    moved, before = ((logits + by * slope).double().log_softmax(-1) for by in (length[:, None], 0))
    divergence = (moved.exp() * (moved - before)).sum(-1)
    assert bool(((divergence > 0.8 * 0.3) & (divergence <= 0.3 * 1.001)).all())


@pytest.mark.parametrize("steer", ["key_value", "hidden"])
@pytest.mark.parametrize("off", [{"gm_scale": 0.0}, {"steps": 0}], ids=["gm_scale", "steps"])
def test_turned_off_steering_is_the_unsteered_sample(random_model, discriminator, steer, off):
    config = SamplingConfig(max_new_tokens=8, top_p=0.95)
    plain = sample(random_model, left_padded(PROMPTS), config=config, seeds=range(8), eos=EOS)
    rows = steered(random_model, PROMPTS, TARGETS, discriminator, seeds=range(8), tokens=8, steer=steer, **off)
    assert rows == plain


@pytest.mark.parametrize("steer", ["key_value", "hidden"])
def test_vanishing_gm_scale_approaches_the_unsteered_sample(random_model, discriminator, steer):
    """The steered path itself, not its short cut, ends in the unmodified distribution."""
    config = SamplingConfig(max_new_tokens=8, top_p=0.95)
    plain = sample(random_model, left_padded(PROMPTS), config=config, seeds=range(8), eos=EOS)
    rows = steered(random_model, PROMPTS, TARGETS, discriminator, seeds=range(8), tokens=8, steer=steer, gm_scale=1e-9)
    assert rows == plain


@pytest.mark.parametrize("steer", ["key_value", "hidden"])
def test_every_ascent_raises_the_labels_probability(random_model, discriminator, steer):
    seen: list[torch.Tensor] = []

    def recording(hidden: torch.Tensor) -> torch.Tensor:
        logits = discriminator(hidden)
        seen.append(logits.detach().log_softmax(-1).gather(-1, TARGETS[:, None])[:, 0])
        return logits

    constants = {"steer": steer, "steps": 6, "kl_weight": 0.0}
    steered(random_model, PROMPTS, TARGETS, recording, seeds=range(8), tokens=1, **constants)
    assert len(seen) == 6
    assert bool((torch.stack(seen).diff(dim=0) > 0).all())


def first_logits(model, discriminator, **constants) -> torch.Tensor:
    """Log-probabilities of the first new token, `(8, vocab)`."""
    kept: list[torch.Tensor] = []
    hook = steer_towards(TARGETS, config=SteeringConfig(**{**STRONG, **constants}), attribute=discriminator)

    def keep(model, step):
        kept.append(step.logits if hook is None else hook(model, step))
        return kept[-1]

    sample(
        model,
        left_padded(PROMPTS),
        config=SamplingConfig(max_new_tokens=1),
        seeds=range(8),
        eos=EOS,
        step_hook=keep,
    )
    return kept[0].log_softmax(-1)


@pytest.mark.parametrize("steer", ["key_value", "hidden"])
def test_fusion_is_the_normalised_geometric_mean(random_model, discriminator, steer):
    plain = first_logits(random_model, discriminator, steer="none")
    modified = first_logits(random_model, discriminator, steer=steer, gm_scale=1.0)
    fused = first_logits(random_model, discriminator, steer=steer, gm_scale=0.3)
    expected = (modified.exp() ** 0.3 * plain.exp() ** 0.7).log()
    assert torch.allclose(fused, expected - expected.exp().sum(-1, keepdim=True).log(), atol=1e-4)


PRAISE = ["A wonderful film, moving and beautiful.", "Brilliant acting and a great story.", "I loved it, it is funny."]
BLAME = ["A terrible film, boring and stupid.", "Awful acting and a bad story.", "I hated it, it is dull."]


@pytest.fixture(scope="module")
def sentiment(tiny_llama):
    """A fixed discriminator of praise (1) and blame (0): the line between their mean states."""

    def states(texts: list[str]) -> torch.Tensor:
        rows = [torch.tensor([[0, *tiny_llama.tokenizer.encode(" " + text)]]) for text in texts]
        with torch.no_grad():
            hidden = [backbone(tiny_llama.model)(input_ids=row).last_hidden_state[0, 2:] for row in rows]
        return torch.cat(hidden).mean(0)

    good, bad = states(PRAISE), states(BLAME)
    direction = 2 * (good - bad) / (good - bad).square().sum()
    return lambda hidden: ((hidden - (good + bad) / 2) @ direction)[..., None] * torch.tensor([-1.0, 1.0])


@pytest.fixture(scope="module")
def praise(tiny_llama, sentiment):
    """Mean p(praise) of short texts that are steered in a way towards each label."""
    prompt = [0, *tiny_llama.tokenizer.encode(" This film is")]

    def praise(steer: str) -> list[float]:
        constants = {"steer": steer, "kl_budget": 0.5, "steps": 2, "kl_weight": 0.01, "tokens": 12}
        return [
            praise_in(
                tiny_llama.model,
                prompt,
                steered(
                    tiny_llama.model, [prompt] * 12, torch.full((12,), label), sentiment, seeds=range(12), **constants
                ),
                sentiment,
            )
            for label in (0, 1)
        ]

    return praise


@pytest.fixture(scope="module")
def plain_praise(praise):
    return praise("none")


@pytest.mark.parametrize("steer", ["key_value", "hidden"])
def test_steered_texts_please_the_discriminator(praise, plain_praise, steer):
    blamed, praised = praise(steer)
    assert plain_praise[0] == plain_praise[1]
    assert blamed < plain_praise[0] - 0.05
    assert praised > plain_praise[1] + 0.05


def praise_in(model, prompt, rows, sentiment) -> float:
    """Mean p(praise) over the unmodified states of all new tokens."""
    probabilities = []
    for row in rows:
        with torch.no_grad():
            hidden = backbone(model)(input_ids=torch.tensor([[*prompt, *row]])).last_hidden_state[0, len(prompt) :]
        probabilities.append(sentiment(hidden).softmax(-1)[:, 1].mean())
    return float(torch.stack(probabilities).mean())


@pytest.mark.parametrize(("layers", "reads"), [(1.0, (2, 2)), (0.5, (1, 2))])
def test_layers_below_the_shift_are_read_once_for_a_token(random_model, discriminator, layers, reads, monkeypatch):
    counts = [0, 0]
    stack = next(child for child in random_model.modules() if isinstance(child, nn.ModuleList))

    def counting(number, forward):
        def counted(*args, **options):
            counts[number] += 1
            return forward(*args, **options)

        return counted

    for number, layer in enumerate(stack):
        monkeypatch.setattr(layer, "forward", counting(number, layer.forward))
    first_logits(random_model, discriminator, steer="none")
    before = counts.copy()
    counts[:] = [0, 0]
    first_logits(random_model, discriminator, steer="key_value", steps=1, layers=layers)
    # The prompt is read once whatever follows.
    assert before == [2, 2]
    assert counts == [1 + count for count in reads]


def test_only_the_window_of_the_cache_moves(random_model, discriminator):
    everything = first_logits(random_model, discriminator, steer="key_value", window=0)
    last = first_logits(random_model, discriminator, steer="key_value", window=1)
    wide = first_logits(random_model, discriminator, steer="key_value", window=99)
    assert torch.equal(everything, wide)
    assert not torch.allclose(everything, last, atol=1e-4)


def test_mean_representation_sees_the_mean_of_the_texts_states(random_model, discriminator):
    seen: list[torch.Tensor] = []

    def recording(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden.detach())
        return discriminator(hidden)

    constants = {"steer": "hidden", "steps": 1, "representation": "mean", "gm_scale": 1e-9}
    row = steered(random_model, [[3, 4]], TARGETS[:1], recording, seeds=[2], tokens=8, **constants)[0]
    ids = torch.tensor([[3, 4, *row]])
    with torch.no_grad():
        hidden = backbone(random_model)(input_ids=ids).last_hidden_state[0]
    assert len(row) >= 3
    assert torch.allclose(seen[0][0], hidden[1], atol=1e-4)  # no text yet: the prompt's last state
    for count in range(1, len(seen)):
        assert torch.allclose(seen[count][0], hidden[2 : 2 + count].mean(0), atol=1e-4)


def test_a_certain_discriminator_moves_nothing(random_model):
    def certain(hidden: torch.Tensor) -> torch.Tensor:
        return torch.stack([hidden.sum(-1) * 0 + 50, hidden.sum(-1) * 1e-3], dim=-1)

    targets = torch.zeros(8, dtype=torch.long)
    plain = steered(random_model, PROMPTS, targets, certain, seeds=range(8), steer="none")
    rows = steered(random_model, PROMPTS, targets, certain, seeds=range(8), steer="hidden", kl_weight=0.0)
    assert rows == plain
