import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from understudy.errors import InputError
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


@pytest.mark.parametrize("profile", ["tiny", "paper"])
def test_a_config_survives_json(profile):
    config = ConditionalGenerationConfig(profile=profile, class_sizes={"a": 3, "b": 4})
    assert ConditionalGenerationConfig.model_validate_json(config.model_dump_json()) == config


def every_model(model: type[BaseModel]):
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from every_model(field.annotation)


def test_every_plain_field_is_described_and_nothing_extra_is_taken():
    for model in every_model(ConditionalGenerationConfig):
        assert model.model_config["frozen"]
        assert model.model_config["extra"] == "forbid"
        for name, field in model.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert nested or field.description, f"{model.__name__}.{name}"


def test_the_naive_variant_has_nothing_to_filter_with():
    with pytest.raises(ValidationError, match="needs a classifier"):
        ConditionalGenerationConfig(variant="naive", filter={"enabled": True})


@pytest.mark.parametrize(
    ("variant", "steers", "filters"),
    [("multitask", True, False), ("naive", False, False), ("naive_filter", False, True), ("naive_pplm", True, False)],
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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", "expected section.key=value"),
        ("train.epoch=3", "no such setting"),
        ("trian.epochs=3", "no such setting"),
        ("train=3", "train"),
        ("train.epochs=0", "train.epochs"),
        ("train.epochs=many", "many"),
        ("update=both", "update"),
        ("profile=paper", "--profile"),
        ("model.name=x", "no such setting"),
    ],
)
def test_wrong_overrides_are_refused_with_what_was_expected(override, message):
    with pytest.raises(InputError, match=message) as refused:
        apply_overrides(ConditionalGenerationConfig(), [override])
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_config_needs_no_torch():
    code = "import sys, understudy.methods.conditional_generation.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
