"""How many rows are drawn at a time: as asked, as a CPU takes, or as many as a GPU has room for."""

from types import SimpleNamespace

import pytest
import torch

from understudy import hardware
from understudy.generation.rows import drawing_bytes, rows_in_flight
from understudy.models.shape import shape_of

CONFIG = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
}


def model(device: str, config: dict = CONFIG) -> SimpleNamespace:
    return SimpleNamespace(device=torch.device(device), config=SimpleNamespace(to_dict=lambda: config))


@pytest.fixture
def gpu(monkeypatch):
    """Give every GPU so many GiB."""
    return lambda gib: monkeypatch.setattr(hardware, "device_memory", lambda: int(gib * 2**30))


def test_a_number_holds_everywhere_and_a_cpu_takes_its_own(gpu):
    gpu(80)
    assert rows_in_flight(model("cuda"), 7, on_cpu=32, prompt=10, new=10) == 7
    assert rows_in_flight(model("cpu"), "auto", on_cpu=32, prompt=10, new=10) == 32
    assert rows_in_flight(model("cuda", {}), "auto", on_cpu=32, prompt=10, new=10) == 32, "a model of unknown shape"


@pytest.mark.parametrize(
    ("gib", "on_cpu", "prompt", "new", "rows"),
    [
        (80, 32, 20, 48, 2048),
        (80, 48, 20, 48, 1536),
        (24, 32, 20, 48, 512),
        (80, 32, 1000, 500, 128),  # each prompt is read whole, with its weights of attention
        (1, 32, 1000, 500, 32),
    ],
)
def test_rows_are_doubled_while_half_of_a_gpu_holds_them(gpu, gib, on_cpu, prompt, new, rows):
    gpu(gib)
    assert rows_in_flight(model("cuda"), "auto", on_cpu=on_cpu, prompt=prompt, new=new) == rows
    each = drawing_bytes(shape_of(CONFIG, parameters=0), prompt=prompt, new=new)
    assert rows * each <= gib * 2**30 / 2 or rows == on_cpu
    assert 2 * rows > 2048 or 2 * rows * each > gib * 2**30 / 2
