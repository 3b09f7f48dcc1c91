import pytest
from pydantic import ValidationError

from understudy.evaluation.config import ClassifierConfig, EvaluationConfig


def test_paper_profile_carries_the_papers_constants():
    config = ClassifierConfig()  # Table 5 of the conditional-generation paper
    assert (config.batch_size, config.epochs, config.learning_rate) == (32, 5, 1e-4)


def test_tiny_profile_fills_only_what_is_not_given():
    config = ClassifierConfig(profile="tiny", epochs=7)
    assert config.epochs == 7
    assert config.learning_rate == 5e-4
    assert config.batch_size == 32


def test_tiny_evaluation_uses_the_probe_and_a_tiny_classifier():
    config = EvaluationConfig(profile="tiny")
    assert config.headline == "probe"
    assert config.classifier.profile == "tiny"
    assert EvaluationConfig().headline == "transformer"


def test_a_config_survives_json():
    config = EvaluationConfig(profile="tiny", seeds=(3, 4), classifier={"base": "tiny-gpt2"})
    assert EvaluationConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"learning_rate": 0}, {"unknown": 1}, {"pooling": "max"}])
def test_classifier_config_refuses(wrong):
    with pytest.raises(ValidationError):
        ClassifierConfig(**wrong)


@pytest.mark.parametrize("seeds", [(), (1, 1), (-1,)])
def test_seeds_must_be_distinct_and_not_negative(seeds):
    with pytest.raises(ValidationError):
        EvaluationConfig(seeds=seeds)
