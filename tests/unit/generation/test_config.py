import pytest
from pydantic import ValidationError

from understudy.generation.config import SamplingConfig, SteeringConfig


@pytest.mark.parametrize(
    "off", [{"steer": "none"}, {"steps": 0}, {"gm_scale": 0.0}, {"kl_budget": 0.0}], ids=lambda d: next(iter(d))
)
def test_steering_is_inactive_when_any_constant_turns_it_off(off):
    assert SteeringConfig(steer="hidden", steps=2, gm_scale=0.5, kl_budget=0.1).active
    assert not SteeringConfig(**{"steer": "hidden", "steps": 2, "gm_scale": 0.5, "kl_budget": 0.1, **off}).active


@pytest.mark.parametrize(
    "wrong", [{"top_p": 0}, {"top_p": 1.1}, {"temperature": 0}, {"max_new_tokens": 0}, {"top_k": 5}]
)
def test_sampling_config_refuses(wrong):
    with pytest.raises(ValidationError):
        SamplingConfig(**wrong)


def test_every_field_is_described():
    for model in (SamplingConfig, SteeringConfig):
        assert all(field.description for field in model.model_fields.values())
