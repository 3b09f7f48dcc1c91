"""The shipped base models with the first of their layers alone, for tests of what surrounds them.

What a model's texts and figures are worth is measured elsewhere, with all of its layers.
"""

import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from understudy.models import stored
from understudy.shipped import MODELS


def make_shallow(folder: Path) -> None:
    """Store every shipped model with one layer, under its own name."""
    for whole in sorted(path for path in MODELS.iterdir() if (path / "config.json").is_file()):
        shutil.copytree(whole, folder / whole.name)
        model = AutoModelForCausalLM.from_pretrained(whole)
        layers = model.base_model.layers if hasattr(model.base_model, "layers") else model.base_model.h
        del layers[1:]
        model.config.num_hidden_layers = 1
        model.save_pretrained(folder / whole.name)


def take_shallow(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Put the models of `make_shallow` in the place of the shipped ones."""
    patch.setattr(stored, "MODELS", folder)
