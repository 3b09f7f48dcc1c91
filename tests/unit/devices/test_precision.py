"""bfloat16 for what is frozen, float32 for what is trained, clipped and stored."""

import copy
import math

import pytest
import torch
from device_steps import (
    LABEL_NAMES,
    LABELS,
    STEPS,
    TEXTS,
    conditional_config,
    matching_config,
    random_base,
    target,
    tensors_of,
    trained,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from understudy.compute import Compute, running_sum, sum_by_blocks
from understudy.data.private_rows import PrivateRows
from understudy.generation.nucleus import draw_tokens, keep_nucleus
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.losses import lm_loss
from understudy.methods.conditional_generation.model import build_model
from understudy.methods.conditional_generation.storage import load_trained, save_trained
from understudy.methods.gradient_matching.config import TargetConfig, VerbalizerConfig
from understudy.methods.gradient_matching.loss import row_states
from understudy.methods.gradient_matching.targets import clipped_sum, factors, target_space
from understudy.methods.gradient_matching.verbalizer import build_verbalizer, encode_rows
from understudy.models import lora
from understudy.models.loading import load_model
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum

FLOAT32, BFLOAT16 = Compute("cpu", "float32"), Compute("cpu", "bfloat16")
# Their models are trained as a whole or measure something, and stay in float32.
IN_FLOAT32 = {"classifier", "encoder", "transfer"}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", [name for name in STEPS if name not in IN_FLOAT32])
def test_every_step_runs_in_bfloat16_and_leaves_nothing_narrow(name):
    found = STEPS[name](BFLOAT16)
    assert found.get("texts", ["text"]), "a step that draws texts drew none"
    for tensor in tensors_of(found).values():
        assert tensor.dtype == torch.float32
        assert bool(torch.isfinite(tensor).all())


@pytest.mark.parametrize("kind", ["head", "sketch"])
def test_a_target_in_bfloat16_is_near_the_one_in_float32(kind):
    config = matching_config(target={"kind": kind, "sketch_dimension": 64})
    one, other = (target(config, compute, noise=0.0).stacked for compute in (FLOAT32, BFLOAT16))
    assert 0 < float((one - other).norm() / one.norm()) < 0.1


@pytest.mark.parametrize("update", ["alternating", "joint"])
def test_adapters_are_trained_in_float32_on_a_frozen_base_in_bfloat16(update):
    model = build_model(random_base(BFLOAT16).model, label_names=LABEL_NAMES, config=conditional_config(update=update))
    dtypes = {name: p.dtype for name, p in model.named_parameters()}
    learned = lora.trainable_parameters(model)
    assert learned
    assert {dtypes[name] for name in learned} == {torch.float32}
    assert {dtype for name, dtype in dtypes.items() if name not in learned} == {torch.bfloat16}


def test_weights_that_are_all_trained_are_float32():
    model = build_model(
        random_base(BFLOAT16).model, label_names=LABEL_NAMES, config=conditional_config(lora={"rank": 0})
    )
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_merging_keeps_what_bfloat16_would_round_away():
    base = random_base(BFLOAT16)
    before = copy.deepcopy(base.model).float().state_dict()
    wrapped = lora.attach(base.model, rank=2, alpha=4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in lora.trainable_parameters(wrapped).items():
            if ".lora_B." in name:
                parameter.fill_(1e-5)
    merged = lora.merge(wrapped).state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    assert merged[name].dtype == torch.float32
    assert bool((merged[name] != before[name]).all())
    lost = (merged[name].bfloat16() == before[name].bfloat16()).double().mean()
    assert float(lost) > 0.5, "too large a change to show anything"


def test_a_model_trained_on_a_base_in_bfloat16_is_stored_in_float32(tmp_path):
    save_trained(trained(conditional_config(), BFLOAT16), tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F32"}, path.name  # noqa: SIM118
    again = load_trained(tmp_path, BFLOAT16).trained.model
    assert {p.dtype for p in again.lm.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in again.discriminator.parameters()} == {torch.float32}


# What clipping promises, seen from outside.


def six_rows(compute: Compute, rank: int):
    """A model with adapters that do something, its language-model parameters, a batch, and the loss of each row."""
    base = random_base(compute)
    config = conditional_config(lora={"rank": rank})
    rows = encode(PrivateRows(TEXTS[:6], LABELS[:6], LABEL_NAMES), tokenizer=base.tokenizer, config=config)
    model = build_model(base.model, label_names=LABEL_NAMES, config=config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in lora.trainable_parameters(model.lm).items():
            if ".lora_B." in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    batch = {name: getattr(rows, name) for name in ("input_ids", "attention_mask", "loss_mask", "label")}
    learned = {name: p for name, p in lora.trainable_parameters(model).items() if name.startswith("lm.")}
    return model, learned, batch, lambda m, b: lm_loss(m, b, prompts=rows.prompts)


def contributions(compute: Compute, rank: int, clip: float) -> list[dict[str, torch.Tensor]]:
    """Each example's clipped gradient of the language-model loss, alone in the sum."""
    model, learned, batch, loss = six_rows(compute, rank)
    return [
        clipped_gradient_sum(model, learned, loss, batch, l2_clip_norm=clip, valid=torch.arange(6) == row)
        for row in range(6)
    ]


def norm(contribution: dict[str, torch.Tensor]) -> float:
    """Over all tensors, in float64."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in contribution.values()))


@pytest.mark.parametrize("rank", [2, 0])
@pytest.mark.parametrize("clip", [1e-3, 0.05, 1e3])
def test_clipped_norms_in_bfloat16_keep_to_the_clip_norm_as_in_float32(rank, clip):
    for compute in (FLOAT32, BFLOAT16):
        found = contributions(compute, rank, clip)
        assert {tensor.dtype for one in found for tensor in one.values()} == {torch.float32}
        norms = [norm(one) for one in found]
        # Not even the rounding of float32 may show beyond 2^-20 of the norm; the charge allows for 2^-10.
        assert max(norms) <= clip * (1 + 2**-20)
        assert min(norms) > (0.99 * clip if clip < 0.01 else 0), "nothing was clipped: the bound shows nothing"


def test_a_gradient_in_bfloat16_is_the_one_of_autograd():
    model, learned, batch, loss = six_rows(BFLOAT16, 2)
    losses = loss(model, batch)
    assert losses.dtype == torch.float32
    for row, found in enumerate(contributions(BFLOAT16, 2, 1e3)):
        gradients = torch.autograd.grad(losses[row], list(learned.values()), retain_graph=True)
        own = dict(zip(learned, gradients, strict=True))
        assert norm({name: found[name] - own[name] for name in own}) < 1e-3 * norm(own)


@settings(deadline=None, max_examples=25)
@given(
    words=st.lists(st.sampled_from(("bad", "good", "film", "never", "~")), min_size=1, max_size=8),
    label=st.integers(0, 1),
    clip=st.sampled_from([1e-4, 0.1, 1.0, 50.0]),
    kind=st.sampled_from(["head", "label_rows", "sketch"]),
)
def test_a_row_adds_at_most_the_clip_norm_to_a_target_in_bfloat16(words, label, clip, kind, base_in_bfloat16):
    base = base_in_bfloat16
    verbalizer = build_verbalizer(base.tokenizer, LABEL_NAMES, VerbalizerConfig())
    config = TargetConfig(kind=kind, sketch_dimension=32)
    space = target_space(base.model, verbalizer, config, public_seed=0)
    rows = encode_rows([" ".join(words)], tokenizer=base.tokenizer, verbalizer=verbalizer, max_length=12)
    left, right = factors(space, *row_states(base.model, rows.input_ids, rows.last), torch.tensor([label]))
    assert left.dtype == right.dtype == torch.float32
    added = clipped_sum(space, left, right, torch.tensor([label]), torch.tensor([True]), clip)
    assert float(added.double().norm()) <= clip * (1 + 2**-40)


@pytest.fixture(scope="module")
def base_in_bfloat16():
    return random_base(BFLOAT16)


# Sampling and sums.


def test_tokens_are_drawn_from_logits_in_bfloat16():
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    uniforms = torch.linspace(0.05, 0.95, 5, dtype=torch.float64)
    drawn = [draw_tokens(values, uniforms, temperature=0.7, top_p=0.8) for values in (logits, logits.float())]
    assert torch.equal(*drawn)
    probabilities = logits.softmax(-1)
    assert torch.equal(keep_nucleus(probabilities, top_p=0.6), keep_nucleus(probabilities.float(), top_p=0.6))


@pytest.mark.parametrize("shape", [(1,), (256,), (257,), (3, 1000), (2, 70_000), (2, 3, 5)])
def test_sums_by_blocks_are_running_sums(shape):
    values = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sum_by_blocks(values), values.cumsum(-1), rtol=1e-13, atol=0)
    torch.testing.assert_close(
        sum_by_blocks(values.movedim(0, -1)), values.movedim(0, -1).cumsum(-1), rtol=1e-13, atol=0
    )
    assert torch.equal(running_sum(values, dim=0), values.cumsum(0))


# Loading.


def test_a_model_loads_in_the_precision_that_its_size_gets():
    small = load_model("tiny-gpt2", compute=Compute("cpu", "bfloat16", from_parameters=50_000_000))
    assert small.model.dtype == torch.float32
    assert load_model("tiny-gpt2", compute=BFLOAT16).model.dtype == torch.bfloat16
    assert load_model("tiny-gpt2", compute=BFLOAT16.in_float32).model.dtype == torch.float32
