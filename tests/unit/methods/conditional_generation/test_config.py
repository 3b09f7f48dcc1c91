import pytest
from pydantic import ValidationError

from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.runs.overrides import apply_overrides


def test_paper_profile_is_the_papers_table_2():
    config = ConditionalGenerationConfig(profile="paper")
    assert config.model == "distilgpt2"
    assert config.train.l2_clip_norm == 0.1
    assert config.train.batch_size == 128
    assert config.train.learning_rate == config.train.discriminator_learning_rate == 5e-4
    assert config.train.learning_rate_decay
    assert config.train.epochs == 4
    assert config.train.frozen_layers == 6
    assert config.lora.rank == 0
    assert config.update == "alternating"
    assert config.discriminator.prefix_step == 2


def test_given_fields_win_over_the_profile_field_by_field():
    config = ConditionalGenerationConfig(profile="paper", train={"epochs": 2.0})
    assert config.train.epochs == 2
    assert config.train.batch_size == 128
    assert ConditionalGenerationConfig(profile="paper", model="gpt2").model == "gpt2"


@pytest.mark.parametrize("variant", ["naive", "untrained"])
def test_a_variant_without_a_classifier_has_nothing_to_filter_with(variant):
    with pytest.raises(ValidationError, match="needs a classifier"):
        ConditionalGenerationConfig(variant=variant, filter={"enabled": True})


@pytest.mark.parametrize("given", [{"selection": {"draws": 1}}, {"profile": "paper"}])
def test_neither_training_nor_class_means_asks_nothing_of_the_rows(given):
    with pytest.raises(ValidationError, match="asks nothing of the private rows"):
        ConditionalGenerationConfig(variant="untrained", **given)


@pytest.mark.parametrize(
    ("variant", "steers", "filters"),
    [
        ("multitask", True, False),
        ("naive", False, False),
        ("naive_filter", False, True),
        ("naive_pplm", True, False),
        ("untrained", False, False),
    ],
)
def test_what_each_variant_does_when_it_generates(variant, steers, filters):
    config = ConditionalGenerationConfig(variant=variant)
    assert (config.steers, config.filters) == (steers, filters)
    off = ConditionalGenerationConfig(variant=variant, generate={"steering": {"steer": "none"}})
    assert not off.steers


def test_overrides_reach_every_level():
    config = apply_overrides(
        ConditionalGenerationConfig(),
        [
            "train.epochs=3",
            "generate.steering.steer=hidden",
            'class_sizes={"good": 2, "bad": 5}',
            'lora.targets=["q_proj"]',
            "prompt.separator= |",
            "filter.enabled=true",
        ],
    )
    assert config.train.epochs == 3
    assert config.generate.steering.steer == "hidden"
    assert config.class_sizes == {"good": 2, "bad": 5}
    assert config.lora.targets == ("q_proj",)
    assert config.prompt.separator == "|"
    assert config.filter.enabled


def test_overrides_keep_the_profiles_values():
    config = apply_overrides(ConditionalGenerationConfig(profile="paper"), ["train.epochs=1"])
    assert config == ConditionalGenerationConfig(profile="paper", train={"epochs": 1.0})
