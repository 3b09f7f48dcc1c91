import pytest
import torch
from random_models import FAMILIES, model_that_reads_images, random_model
from transformers import FalconConfig, FalconForCausalLM

from understudy.errors import InputError
from understudy.models.upper_layers import entering_states, freeze_lower_layers, last_state


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def build(family, *, tied=True):
    narrow = {"word_embed_proj_dim": 12} if family == "opt" else {}
    model = random_model(family, vocabulary=37, width=16, positions=32, layers=3, tie_word_embeddings=tied, **narrow)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def batch():
    """Three rows of different lengths, padded on the right."""
    ids = torch.randint(2, 37, (3, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 2 + [0] * 5])
    return ids, mask


@pytest.mark.parametrize("count", [1, 2])
def test_lower_and_upper_layers_together_are_the_model(family, count):
    model = build(family)
    ids, mask = batch()
    with torch.no_grad():
        wanted = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    states = entering_states(model, count, input_ids=ids, attention_mask=mask)
    states[mask == 0] = 5.0  # what stands in padded columns must not matter
    found = last_state(model, count, input_ids=ids, attention_mask=mask, states=states)
    for row, length in enumerate(mask.sum(1)):
        assert torch.allclose(found[row], wanted[row, length - 1], atol=1e-5)
        # one row alone, without padding
        with torch.no_grad():
            alone = model.base_model(input_ids=ids[row : row + 1, :length]).last_hidden_state[0, -1]
        assert torch.allclose(found[row], alone, atol=1e-5)
    with torch.no_grad():  # the model is whole again
        assert torch.equal(model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state, wanted)


def test_a_layer_may_add_to_what_its_mlp_gives_in_place():
    """Falcon's do."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FalconForCausalLM(
            FalconConfig(vocab_size=37, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        ).eval()
    ids, mask = batch()
    with torch.no_grad():
        wanted = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    states = entering_states(model, 1, input_ids=ids, attention_mask=mask)
    found = last_state(model, 1, input_ids=ids, attention_mask=mask, states=states)
    assert torch.allclose(found, wanted[torch.arange(3), mask.sum(1) - 1], atol=1e-5)
    assert torch.autograd.grad(found.sum(), model.base_model.h[1].mlp.dense_h_to_4h.weight)[0].any()


def test_gradients_of_the_trained_layers_are_those_of_the_whole_pass(family):
    model = build(family)
    freeze_lower_layers(model, 1)
    weights = [p for p in model.parameters() if p.requires_grad]
    ids, mask = batch()
    head = model.get_output_embeddings()
    whole = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state[torch.arange(3), mask.sum(1) - 1]
    wanted = torch.autograd.grad(head(whole).logsumexp(-1).sum(), weights, allow_unused=True)
    states = entering_states(model, 1, input_ids=ids, attention_mask=mask)
    assert not states.requires_grad
    upper = last_state(model, 1, input_ids=ids, attention_mask=mask, states=states)
    found = torch.autograd.grad(head(upper).logsumexp(-1).sum(), weights, allow_unused=True)
    assert sum(w is not None for w in wanted) > 10
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_what_enters_the_upper_layers_is_frozen_and_nothing_else(family, tied):
    model = build(family, tied=tied)
    freeze_lower_layers(model, 2)
    stack = next(m for m in model.base_model.modules() if isinstance(m, torch.nn.ModuleList))
    trained = [any(p.requires_grad for p in layer.parameters()) for layer in stack]
    assert trained == [False, False, True]
    assert not model.get_input_embeddings().weight.requires_grad
    if family == "opt":  # its embeddings are narrower than its layers
        assert not model.base_model.decoder.project_in.weight.requires_grad
        assert model.base_model.decoder.project_out.weight.requires_grad
    assert model.get_output_embeddings().weight.requires_grad is (not tied)
    freeze_lower_layers(model, 0)
    assert all(p.requires_grad for p in model.parameters())


def test_too_many_layers_are_refused(family):
    with pytest.raises(InputError, match="frozen_lower_layers=3: expected 0 to 2"):
        freeze_lower_layers(build(family), 3)


def test_a_model_without_layers_is_refused():
    class Flat(torch.nn.Module):
        @property
        def base_model(self):
            return self

    with pytest.raises(InputError, match="stack of layers"):
        freeze_lower_layers(Flat(), 1)


def test_the_layers_of_a_model_that_reads_images_too_are_those_of_its_text():
    model = model_that_reads_images()
    freeze_lower_layers(model, 2)
    layers = model.base_model.get_decoder().layers
    assert [any(p.requires_grad for p in layer.parameters()) for layer in layers] == [False, False, True, True]
