"""The ablation over all layers: gradients by autograd, slopes by finite differences."""

from functools import partial

import pytest
import torch
from random_models import random_model as random_family
from torch.nn import functional

from understudy.errors import InputError
from understudy.methods.gradient_matching.config import GradientMatchingConfig, TargetConfig
from understudy.methods.gradient_matching.full_gradient import all_parameters, full_objective, text_gradient
from understudy.methods.gradient_matching.loss import objective, surround
from understudy.methods.gradient_matching.method import check_model
from understudy.methods.gradient_matching.targets import target_space
from understudy.methods.gradient_matching.verbalizer import Verbalizer
from understudy.models.checkpoints import export_model
from understudy.models.loading import load_model

FAMILIES = ["gpt2", "llama", "opt", "phi"]
WORDS = Verbalizer(("a", "b"), torch.tensor([7, 60]), torch.tensor([5, 6]), torch.tensor([0]))
LABELS = torch.tensor([1, 0, 1])


def setting(model, kind="head"):
    space = target_space(model, WORDS, TargetConfig(kind=kind, sketch_dimension=8), public_seed=0)
    generator = torch.Generator().manual_seed(1)
    width = model.get_input_embeddings().embedding_dim
    texts = 0.3 * torch.randn(len(LABELS), 4, width, generator=generator)
    size = sum(parameter.numel() for parameter in all_parameters(model).values())
    return space, torch.randn(2, size, generator=generator), texts


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_the_ordinary_backward_pass(random_model, family, tied):
    model = random_model(family, bias=True, tied=tied).double()
    space, _, texts = setting(model)
    texts = texts.double()
    found = text_gradient(model, space, surround(model, texts[:1], WORDS), LABELS[0])
    model.requires_grad_(True)
    logits = model(inputs_embeds=surround(model, texts[:1], WORDS), use_cache=False).logits[:, -1]
    functional.cross_entropy(logits, WORDS.token_ids[LABELS[:1]]).backward()
    parameters = dict(model.named_parameters())
    embedding = model.get_input_embeddings().weight
    expected = []
    for name in sorted(parameters):
        if tied or parameters[name] is not embedding:
            gradient = parameters[name].grad
            expected.append((torch.zeros_like(parameters[name]) if gradient is None else gradient).flatten())
        else:
            assert parameters[name].grad is None
    torch.testing.assert_close(found.detach(), torch.cat(expected), rtol=1e-5, atol=1e-6)


def rms_norm(module, hidden):
    return module.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_slope_is_that_of_finite_differences(random_model, family):
    """In double precision, along random directions; the models attend with the fused kernels by default."""
    model = random_model(family).double()
    for module in model.modules():
        if type(module).__name__ == "LlamaRMSNorm":  # its own computes in single precision whatever the model's
            module.forward = partial(rms_norm, module)
    space, target, texts = setting(model)
    loss = full_objective(model, space, target.double(), WORDS, LABELS)
    texts = texts.double().requires_grad_()
    losses = loss(texts)
    assert losses.shape == (3,)
    (slope,) = torch.autograd.grad(losses.sum(), texts)
    generator = torch.Generator().manual_seed(4)
    size = 1e-5
    for _ in range(3):
        direction = torch.randn(texts.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            ahead, behind = (loss(texts + sign * size * direction).sum() for sign in (1, -1))
        expected = float(ahead - behind) / (2 * size)
        assert float((slope * direction).sum()) == pytest.approx(expected, rel=1e-6)


def test_a_target_of_the_head_alone_gives_the_closed_forms_direction(random_model):
    """With zeros for every other layer, the inner product is the head's; the loss differs by the norms alone."""
    model = random_model("llama", tied=False)
    space, _, texts = setting(model)
    head_target = torch.randn(2, *space.shape, generator=torch.Generator().manual_seed(5))
    parts = {
        name: torch.zeros(2, parameter.numel()) if name != "lm_head.weight" else head_target.flatten(1)
        for name, parameter in all_parameters(model).items()
    }
    full = 1 - full_objective(model, space, torch.cat(list(parts.values()), dim=1), WORDS, LABELS)(texts)
    closed = 1 - objective(model, space, head_target, WORDS, LABELS)(texts)
    share = []
    for text, label in zip(texts, LABELS, strict=True):
        gradient = text_gradient(model, space, surround(model, text[None], WORDS), label)
        sizes = [parameter.numel() for parameter in all_parameters(model).values()]
        own = dict(zip(parts, gradient.split(sizes), strict=True))["lm_head.weight"]
        share.append(own.norm() / gradient.norm())
    torch.testing.assert_close(full, closed * torch.stack(share), rtol=1e-4, atol=1e-6)
    assert (torch.stack(share) < 0.999).all()


@pytest.mark.parametrize(("family", "fits"), [("gpt2", True), ("opt", False)])
def test_a_model_without_a_gradient_of_all_layers_is_refused_before_the_charge(family, fits, tmp_path):
    """OPT's position embedding makes of its input which rows it takes, as none of the layers that are known here."""
    model = random_family(family, vocabulary=4096, width=16, positions=64, layers=1)
    export_model(model, load_model("tiny-gpt2").tokenizer, tmp_path / family)
    settings = {"model": str(tmp_path / family), "max_length": 16, "length": 6, "projection": {"k": 20}}
    words = {"verbalizer": {"words": "names", "template": " It was"}, "filter": {"label_check": False}}
    assert check_model(GradientMatchingConfig(**settings, **words), ("bad", "good")).name == family
    full = GradientMatchingConfig(**settings, **words, matching={"gradient": "full"})
    if fits:
        assert check_model(full, ("bad", "good")).name == family
        return
    with pytest.raises(InputError, match=r"model=opt: layer .*embed_positions.* set matching\.gradient=closed_form"):
        check_model(full, ("bad", "good"))
