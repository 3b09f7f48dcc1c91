import pytest
import torch

from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError
from understudy.generation.step import last_states
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.model import MultitaskModel, TrainedModel
from understudy.methods.conditional_generation.states import (
    hide_labels,
    label_log_probabilities,
    prefix_states,
    random_labels,
    text_states,
)
from understudy.models.loading import load_model


@pytest.fixture(scope="module")
def tokenizer():
    """A whole one: two labels drawn from few tokens are often the same by chance."""
    return load_model("tiny-llama").tokenizer


TEXTS = ["a", "a good film", "the plot is slow and the film is bad", "word " * 50]


def test_random_labels_are_a_function_of_seed_step_and_slot(encoded):
    prompts = encoded.prompts
    slots = torch.arange(200)
    drawn = random_labels(prompts, slots, step=3, seed=7)
    start, stop = encoded.label_span
    assert drawn.shape == (200, stop - start)
    picked = torch.tensor([150, 3, 77])
    assert torch.equal(random_labels(prompts, picked, step=3, seed=7), drawn[picked])
    for other in (random_labels(prompts, slots, step=4, seed=7), random_labels(prompts, slots, step=3, seed=8)):
        assert (other == drawn).float().mean() < 0.02


def test_random_labels_are_uniform_over_ordinary_tokens(encoded):
    prompts = encoded.prompts
    drawn = random_labels(prompts, torch.arange(30_000), step=0, seed=0)
    assert set(drawn.flatten().tolist()) <= set(prompts.ordinary_ids.tolist())
    size = len(prompts.ordinary_ids)
    halves = (drawn.double() < size / 2).double().mean(0)
    assert torch.allclose(halves, torch.full_like(halves, 0.5), atol=0.015)
    assert len(drawn[:, 0].unique()) > 0.9 * size  # 1 - exp(-30000 / 8190) of them are expected
    assert (drawn[:, 0] == drawn[:, 1]).double().mean() < 0.002


def test_the_discriminators_view_is_the_same_whatever_the_label(tokenizer, make_config, label_names):
    views = []
    for label in range(len(label_names)):
        rows = encode(PrivateRows(TEXTS, [label] * 4, label_names), tokenizer=tokenizer, config=make_config())
        labels = random_labels(rows.prompts, torch.arange(4), step=1, seed=0)
        views.append(hide_labels(rows.input_ids, rows.attention_mask, prompts=rows.prompts, labels=labels))
    for ids, mask in views[1:]:
        assert torch.equal(ids, views[0][0])
        assert torch.equal(mask, views[0][1])
    start, stop = rows.label_span
    assert torch.equal(views[0][0][:, start:stop], labels)
    assert torch.equal(views[0][0][:, rows.prompts.width :], rows.input_ids[:, rows.prompts.width :])
    assert views[0][1][:, : rows.prompts.width].all()


def test_prefix_means_by_hand():
    hidden = torch.tensor([[[2.0], [4.0], [9.0], [5.0]], [[1.0], [7.0], [7.0], [7.0]]])
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    assert prefix_states(hidden, mask, "mean")[..., 0].tolist() == [[2.0, 3.0, 5.0, 5.0], [1.0, 1.0, 1.0, 1.0]]
    assert prefix_states(hidden, mask, "last") is hidden


def test_text_states_are_the_means_over_each_text_and_its_end(untrained, make_config):
    config = make_config()
    states = text_states(untrained.model.lm, TEXTS, trained=untrained, config=config)
    for row, text in enumerate(TEXTS):
        rows = encode(PrivateRows([text], [0], untrained.label_names), tokenizer=untrained.tokenizer, config=config)
        labels = random_labels(rows.prompts, torch.tensor([0]), step=-1, seed=config.public_seed)
        ids, mask = hide_labels(rows.input_ids, rows.attention_mask, prompts=rows.prompts, labels=labels)
        real = mask[0].bool()
        with torch.no_grad():
            hidden = last_states(untrained.model.lm, ids[:, real], mask[:, real])[0, rows.prompts.width :]
        assert torch.allclose(states["mean"][row], hidden.mean(0), atol=1e-5)
        assert torch.allclose(states["last"][row], hidden[-1], atol=1e-5)


@pytest.mark.parametrize("representation", ["mean", "last"])
def test_label_probabilities_are_the_discriminators(untrained, make_config, representation):
    config = make_config(discriminator={"representation": representation})
    found = label_log_probabilities(untrained, TEXTS, config=config)
    assert torch.allclose(found.exp().sum(-1), torch.ones(4), atol=1e-5)
    assert (found[0] - found[2]).abs().max() > 1e-3
    if representation == "mean":
        states = text_states(untrained.model.lm, TEXTS, trained=untrained, config=config)["mean"]
        assert torch.allclose(found, untrained.model.discriminator(states).log_softmax(-1), atol=1e-5)


def test_a_texts_probabilities_do_not_depend_on_the_texts_beside_it(untrained, make_config):
    together = label_log_probabilities(untrained, TEXTS, config=make_config())
    alone = [label_log_probabilities(untrained, [text], config=make_config()) for text in TEXTS]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)


def test_a_model_without_classifier_has_no_label_probabilities(untrained, make_config):
    naive = TrainedModel(
        MultitaskModel(untrained.model.lm), untrained.tokenizer, untrained.label_names, untrained.prompts
    )
    with pytest.raises(InputError, match="no classifier"):
        label_log_probabilities(naive, TEXTS, config=make_config())
