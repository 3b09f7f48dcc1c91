"""The closed form against double backward over the head, in float32, on four model families."""

import copy

import pytest
import torch
from torch.nn import functional

from understudy.errors import InputError
from understudy.generation.sampling import backbone, head
from understudy.methods.gradient_matching.config import TargetConfig
from understudy.methods.gradient_matching.loss import (
    last_state,
    matching_loss,
    objective,
    row_states,
    surround,
    text_losses,
)
from understudy.methods.gradient_matching.targets import target_space
from understudy.methods.gradient_matching.verbalizer import Verbalizer, encode_rows

FAMILIES = ["gpt2", "llama", "opt", "phi"]
KINDS = ["head", "label_rows", "sketch"]
WORDS = Verbalizer(
    label_names=("a", "b", "c"),
    token_ids=torch.tensor([7, 11, 60]),
    template_ids=torch.tensor([5, 6]),
    prefix_ids=torch.tensor([0]),
)
LABELS = torch.tensor([2, 0, 1, 0])


def setting(model, kind):
    space = target_space(model, WORDS, TargetConfig(kind=kind, sketch_dimension=32), public_seed=3)
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(3, *space.shape, generator=generator)
    # Scaled as the shipped models' embeddings are, and small enough for every part of the model to matter.
    width = model.get_input_embeddings().embedding_dim
    texts = 0.3 * torch.randn(len(LABELS), 5, width, generator=generator)
    return space, target, texts


def head_gradient(model, space, logits, label):
    """The gradient of one text's loss by the real head, as one matrix, with a graph; autograd all the way."""
    weight, bias = model.lm_head.weight, model.lm_head.bias
    if space.kind == "label_rows":
        loss = functional.cross_entropy(logits[space.token_ids][None], label[None])
    else:
        loss = functional.cross_entropy(logits[None], space.token_ids[label][None])
    found = torch.autograd.grad(loss, [weight] if bias is None else [weight, bias], create_graph=True)
    gradient = found[0] if bias is None else torch.cat([found[0], found[1][:, None]], dim=1)
    if space.kind == "label_rows":
        others = torch.ones(len(gradient), dtype=torch.bool)
        others[space.token_ids] = False
        assert not gradient[others].any()
        return gradient[space.token_ids]
    if space.kind == "sketch":
        a, b = (part.to(gradient.dtype) for part in space.sketch)
        return torch.einsum("mv,vr,mr->m", a, gradient, b) / len(a) ** 0.5
    return gradient


def by_double_backward(model, space, target, texts):
    """Losses and their gradient by the embeddings in double precision: the oracle."""
    model = copy.deepcopy(model).double()
    model.lm_head.weight.requires_grad_(True)
    texts, target = texts.double().requires_grad_(), target.double()
    logits = model(inputs_embeds=surround(model, texts, WORDS), use_cache=False).logits[:, -1]
    losses = []
    for row, label in enumerate(LABELS):
        gradient = head_gradient(model, space, logits[row], label).flatten()
        losses.append(1 - functional.cosine_similarity(gradient, target[label].flatten(), dim=0))
    losses = torch.stack(losses)
    return losses.detach(), torch.autograd.grad(losses.sum(), texts)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_closed_form_is_double_backward(random_model, family, bias, tied, kind):
    model = random_model(family, bias=bias, tied=tied)
    space, target, texts = setting(model, kind)
    expected, slope = by_double_backward(model, space, target, texts)
    texts.requires_grad_()
    losses = objective(model, space, target, WORDS, LABELS)(texts)
    (found,) = torch.autograd.grad(losses.sum(), texts)
    assert losses.dtype == found.dtype == torch.float32
    torch.testing.assert_close(losses.double(), expected, rtol=1e-4, atol=0)
    error = (found - slope).flatten(1).norm(dim=1) / slope.flatten(1).norm(dim=1)
    assert error.max() < 1e-4
    assert slope.flatten(1).norm(dim=1).min() > 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_the_state_is_what_the_head_gets_and_the_logits_what_the_model_gives(random_model, family):
    model = random_model(family, bias=True, tied=False)
    _, _, texts = setting(model, "head")
    seen = []
    handle = model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    logits = model(inputs_embeds=surround(model, texts, WORDS), use_cache=False).logits[:, -1]
    handle.remove()
    hidden, own = last_state(model, texts, WORDS)
    torch.testing.assert_close(hidden, seen[0][:, -1])
    torch.testing.assert_close(own, logits)


def test_a_text_is_one_with_its_own_gradient_and_opposed_to_its_negative(random_model):
    model = random_model("llama")
    space, _, texts = setting(model, "head")
    hidden, logits = last_state(model, texts[:1], WORDS)
    weight = head_gradient(model, space, logits[0], LABELS[0]).detach()
    for sign, loss in ((1, 0.0), (-3, 2.0)):
        target = torch.zeros(3, *space.shape)
        target[LABELS[0]] = sign * weight
        found = matching_loss(space, hidden, logits, LABELS[:1], target)
        assert found.item() == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_label_without_a_target_has_loss_1_and_no_slope(random_model, kind):
    model = random_model("gpt2")
    space, target, texts = setting(model, kind)
    target[0] = 0
    texts.requires_grad_()
    losses = objective(model, space, target, WORDS, LABELS)(texts)
    (slope,) = torch.autograd.grad(losses.sum(), texts)
    empty = LABELS == 0
    assert (losses[empty] == 1).all()
    assert (slope[empty] == 0).all()
    assert (slope[~empty].flatten(1).norm(dim=1) > 0).all()
    assert slope.isfinite().all()


def test_texts_do_not_see_each_other(random_model):
    model = random_model("phi", bias=True)
    space, target, texts = setting(model, "label_rows")
    together = objective(model, space, target, WORDS, LABELS)(texts)
    alone = [objective(model, space, target, WORDS, LABELS[i : i + 1])(texts[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_the_objective_leaves_nothing_on_the_parameters(random_model):
    model = random_model("gpt2")
    space, target, texts = setting(model, "head")
    objective(model, space, target, WORDS, LABELS)(texts.requires_grad_()).sum().backward()
    assert texts.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_to_the_right_changes_nothing(make_base, family):
    base = make_base(family)
    words = Verbalizer(("a", "b"), torch.tensor([7, 9]), torch.tensor([5, 6]), torch.tensor([0]))
    texts = ["good", "a film that goes on for far too long to be called good", ""]
    arguments = {"tokenizer": base.tokenizer, "verbalizer": words}
    rows = encode_rows(texts, max_length=40, **arguments)
    hidden, _ = row_states(base.model, rows.input_ids, rows.last)
    for row, text in enumerate(texts):
        alone = encode_rows([text], max_length=max(1, int(rows.text_tokens[row])), **arguments)
        whole = alone.input_ids[:, : int(alone.last) + 1]
        state = backbone(base.model)(input_ids=whole, use_cache=False).last_hidden_state[:, -1]
        torch.testing.assert_close(hidden[row], state[0], rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_string_is_the_loss_of_its_embeddings(make_base):
    base = make_base("llama", bias=True)
    space = target_space(base.model, WORDS, TargetConfig(kind="sketch", sketch_dimension=16), public_seed=0)
    target = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    text = "a good film"
    ids = base.tokenizer.encode(" " + text, add_special_tokens=False)
    embedded = base.model.get_input_embeddings()(torch.tensor([ids])).detach()
    label = torch.tensor([1])
    expected = objective(base.model, space, target, WORDS, label)(embedded)
    found = text_losses(
        [text],
        label,
        model=base.model,
        tokenizer=base.tokenizer,
        space=space,
        target=target,
        verbalizer=WORDS,
        max_length=30,
    )
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("times", [1.0, 1e-4, 0.0])
def test_scaled_and_capped_logits_are_refused_however_small_they_are(times):
    """A cap of 30 moves logits of 0.01 by less than their rounding, and those of other texts may be large."""
    from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

    small = {
        "vocab_size": 61,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        models = [CohereForCausalLM(CohereConfig(**small)), Gemma2ForCausalLM(Gemma2Config(**small, head_dim=8))]
    for model in models:
        head(model).weight.data.normal_(generator=torch.Generator().manual_seed(0)).mul_(times)
        with pytest.raises(InputError, match="scaled or capped"):
            target_space(model.eval(), WORDS, TargetConfig(), public_seed=0)


@pytest.mark.parametrize("family", ["gpt2", "llama", "phi"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_heads_are_taken_and_left_as_they_are(random_model, family, dtype):
    model = random_model(family).to(dtype)
    ids = torch.arange(5)[None]
    before = model(input_ids=ids).logits
    assert target_space(model, WORDS, TargetConfig(), public_seed=0).vocabulary == head(model).out_features
    assert torch.equal(model(input_ids=ids).logits, before)


def test_a_mixture_of_experts_is_refused():
    """An expert multiplies the tokens of all rows that are sent to it together: one row moves the others' states."""
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"vocab_size": 60, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixture = MixtralForCausalLM(MixtralConfig(**sizes, **heads, num_local_experts=8)).eval()
    with pytest.raises(InputError, match="mixture of 8 experts"):
        target_space(mixture, WORDS, TargetConfig(), public_seed=0)
