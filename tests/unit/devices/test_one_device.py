"""Every kind of step on a device that is not there: a tensor left on the CPU meets one that is not, and fails."""

import functools
import importlib

import pytest
import torch
from device_steps import STEPS
from one_device import META, MixedDevicesError, OneDevice

from understudy.compute import Compute

METHODS = "understudy.methods"
# Step -> a function that it calls, where the step looks it up, and which gives a tensor of the step's device.
PLACES = {
    "train-lora": f"{METHODS}.conditional_generation.losses:last_states",
    "train-joint": f"{METHODS}.conditional_generation.losses:token_losses",
    "train-all-weights": f"{METHODS}.conditional_generation.losses:hide_labels",
    "train-filter": f"{METHODS}.conditional_generation.losses:prefix_states",
    "train-head": f"{METHODS}.conditional_generation.losses:prefix_states",
    "release-head": f"{METHODS}.gradient_matching.release:row_states",
    "release-sketch": f"{METHODS}.gradient_matching.release:factors",
    "release-full": f"{METHODS}.gradient_matching.full_gradient:embed",
    "match-top-k": f"{METHODS}.gradient_matching.projection:top_tokens",
    "match-l2": f"{METHODS}.gradient_matching.swaps:_losses",
    "match-full": f"{METHODS}.gradient_matching.full_gradient:surround",
    "generate-hidden": "understudy.generation.steering:next_logits",
    "generate-key-value": "understudy.generation.steering:_norm",
    "dpo": "transformers.models.llama.modeling_llama:LlamaMLP.forward",
    "candidates": "understudy.generation.sampling:draw_tokens",
    "expert": f"{METHODS}.trajectory_matching.student:widened",
    "distil": f"{METHODS}.trajectory_matching.distil:nearest_tokens",
    "pseudo-text": f"{METHODS}.trajectory_matching.emission:nearest_tokens",
    "less": f"{METHODS}.trajectory_matching.student:widened",
    "classifier": "understudy.evaluation.utility.classifier:_logits",
    "encoder": "transformers.models.bert.modeling_bert:BertIntermediate.forward",
    "transfer": "understudy.evaluation.utility.transfer:last_state",
    "perplexity": "understudy.evaluation.texts.language_model:token_losses",
}

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch says that it copies nothing into a tensor without data.
    pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter:UserWarning"),
]


@pytest.fixture
def watched(monkeypatch):
    """The mode; autocast, which knows no device `meta`, is off there."""
    known = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device="cuda": False if device == META else known(device))
    return OneDevice(true_per_row=1)


def planted(function):
    """The function, but its first tensor is looked up by a tensor that was made without saying where."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        found = function(*args, **kwargs)
        first, *rest = found if isinstance(found, tuple) else (found,)
        if first.dim() > 0:
            first = first[torch.zeros(len(first), dtype=torch.long)]
        return (first, *rest) if isinstance(found, tuple) else first

    return wrapper


@pytest.mark.parametrize("name", STEPS)
def test_no_tensor_is_left_behind(name, watched):
    with watched:
        STEPS[name](Compute(META))
    assert watched.operations > 100, "the step did not compute on the device: nothing was watched"


@pytest.mark.parametrize("name", STEPS)
def test_a_tensor_made_without_a_device_is_caught(name, watched, monkeypatch):
    module, _, path = PLACES[name].partition(":")
    *owners, last = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    monkeypatch.setattr(owner, last, planted(getattr(owner, last)))
    with pytest.raises(MixedDevicesError, match=r"'cpu', .*'meta'|'meta', .*'cpu'"), watched:
        STEPS[name](Compute(META))


def test_operations_that_torch_lets_pass_are_refused():
    there, here = torch.zeros(3, 3, device=META), torch.zeros(3, 3)
    for mixed in (lambda: there @ here, lambda: there[torch.zeros(3, dtype=torch.long)], lambda: here.to(META) + here):
        with pytest.raises(MixedDevicesError), OneDevice():
            mixed()


def test_copies_and_numbers_are_allowed():
    with OneDevice() as mode:
        found = torch.zeros(3).to(META) * torch.tensor(2.0) + 1
        back = found.cpu()
        found.copy_(torch.ones(3))
    assert found.device.type == META
    assert torch.equal(back, torch.zeros(3))
    assert mode.operations > 2
