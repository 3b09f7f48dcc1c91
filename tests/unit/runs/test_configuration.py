"""From a request to the settings of its method, and what is said where a profile's model is not there."""

import pytest

from understudy.errors import InputError
from understudy.models.folders import model_folder
from understudy.runs.configuration import configure, profile_named
from understudy.runs.request import request_of


def refusal(method, *, look, **given):
    """What is said of a model that is looked at with the settings of a request."""
    fields = {"data": "rows.csv", "source": "ward", "out": "out", "epsilon": 2.0}
    config = configure(request_of(fields | given), method)
    with pytest.raises(InputError) as refused, profile_named(method, config):
        model_folder(look(config))
    return str(refused.value)


def test_a_missing_model_that_the_profile_chose_is_told_with_the_profile(monkeypatch):
    monkeypatch.setattr("understudy.models.folders.hub_cached", lambda name: None)
    said = refusal("conditional-generation", profile="paper", look=lambda config: config.model)
    assert said.startswith("--profile paper chose the model: unknown model='distilgpt2'")
    assert "understudy models get distilgpt2" in said
    assert said.endswith("--model NAME")
    nested = refusal("knowledge-distillation", profile="paper", look=lambda config: config.professional.model)
    assert "--set professional.model=NAME" in nested


@pytest.mark.parametrize(
    ("method", "given", "others"),
    [
        ("knowledge-distillation", {}, "professional.model='AlpaCare/AlpaCare-llama2-7b'"),
        ("trajectory-matching", {}, "tuning.transfer='meta-llama/Llama-2-7b-hf'"),
        ("knowledge-distillation", {"overrides": ("professional.model=tiny-llama",)}, ""),
        ("preference-optimization", {}, ""),
    ],
)
def test_all_missing_models_of_a_profile_are_told_at_once(method, given, others, monkeypatch):
    monkeypatch.setattr("understudy.models.folders.hub_cached", lambda name: None)
    said = refusal(method, profile="paper", look=lambda config: config.model, **given)
    _, tells, told = said.partition("It chose further models that are missing: ")
    assert (bool(tells), told) == (bool(others), others)


@pytest.mark.parametrize("given", [{"model": "who/knows"}, {"overrides": ("model=who/knows",)}])
def test_a_missing_model_that_the_user_named_is_told_without_the_profile(given, monkeypatch):
    monkeypatch.setattr("understudy.models.folders.hub_cached", lambda name: None)
    said = refusal("conditional-generation", profile="paper", look=lambda config: config.model, **given)
    assert said.startswith("unknown model='who/knows'")
    assert "--profile" not in said
