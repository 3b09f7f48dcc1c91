"""How many pairs pass at a time, and that the charge does not say."""

import pytest

from understudy import hardware
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig as Config
from understudy.methods.knowledge_distillation.memory import pairs_per_pass
from understudy.methods.knowledge_distillation.method import METHOD
from understudy.models.shape import ModelShape

BIG = ModelShape(30, 576, 576, 192, 1536, True, 49_152, 134_515_008)


@pytest.mark.parametrize(
    ("device", "gib", "expected", "length", "pairs"),
    [
        ("cpu", 80, 64, 96, 8),
        ("cuda", 80, 64, 96, 64),
        ("cuda", 80, 500, 96, 128),  # more tokens are not faster
        ("cuda", 80, 64, 512, 32),
        ("cuda", 4, 64, 512, 8),
    ],
)
def test_a_pass_has_more_pairs_on_a_gpu(monkeypatch, device, gib, expected, length, pairs):
    monkeypatch.setattr(hardware, "device_memory", lambda: gib << 30)
    config = Config(train={"max_length": length})
    assert pairs_per_pass(config, expected=expected, shape=BIG, device=device) == pairs
    given = Config(train={"max_length": length, "micro_batch": 5})
    assert pairs_per_pass(given, expected=expected, shape=BIG, device=device) == 5
    assert pairs_per_pass(config, expected=expected, shape=None, device=device) == 8


def test_the_charge_says_auto():
    """What it stands for follows from the device, to which a charge is bound."""
    assert METHOD.charge.settings(Config()).train.micro_batch == "auto"
