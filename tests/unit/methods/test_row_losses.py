"""Losses of rows under what a run of each method released, and under the public model it began with."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests_support import write_random_model
from transformers.pytorch_utils import Conv1D

from understudy.auditing.weights import shares
from understudy.compute import ON_CPU
from understudy.data import tables
from understudy.data.tables import named_labels
from understudy.errors import UnderstudyError
from understudy.lazy import load
from understudy.methods import registry
from understudy.methods.reading import RowsToRead
from understudy.models.checkpoints import export_model
from understudy.models.loading import load_base, load_model
from understudy.tasks.auditing import Attacked, _scores_by_model

TEXTS = ["the film was good and long", "a short one", "the plot of this film is as dull as the last film"]
ROWS = {
    "conditional-generation": pa.table({"text": TEXTS, "label": [0, 1, 0]}, schema=tables.LABELLED_SCHEMA),
    "knowledge-distillation": pa.table({"instruction": TEXTS, "response": TEXTS[::-1]}),
    "preference-optimization": pa.table({"client_id": ["a", "b", "c"], "text": TEXTS}),
}
NAMES = {"conditional-generation": ("negative", "positive")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("model") / "random", positions=128)


def losses(method, rows, config, model=None):
    return reading(method, rows, config, model).values()


def reading(method, rows, config, model=None):
    place = registry.get(method).row_losses
    return load(place)(RowsToRead(rows, NAMES.get(method, ()), config, model, ON_CPU))


def settings(method, folder):
    own = {"knowledge-distillation": {"train": {"max_length": 60}}, "conditional-generation": {"variant": "naive"}}
    return registry.get(method).config.model_validate({"model": str(folder), **own.get(method, {})})


def released(method, config, loaded, place):
    """A model as a run of the method would release it."""
    place.mkdir()
    if method != "conditional-generation":
        export_model(loaded.model, loaded.tokenizer, place)
        return place
    from understudy.generation.prompts import build_prompts
    from understudy.methods.conditional_generation.model import MultitaskModel, TrainedModel
    from understudy.methods.conditional_generation.storage import StoredModel, save_trained

    prompts = build_prompts(loaded.tokenizer, NAMES[method], config.prompt, about=config.about)
    trained = TrainedModel(MultitaskModel(loaded.model), loaded.tokenizer, NAMES[method], prompts)
    save_trained(StoredModel(trained, config, None), place)
    return place


@pytest.mark.parametrize("method", ROWS)
def test_the_released_model_reads_with_its_own_weights(method, folder, tmp_path):
    config, rows = settings(method, folder), ROWS[method]
    public = losses(method, rows, config)
    assert public.shape == (3,)
    assert np.isfinite(public).all()
    same = released(method, config, load_base(config), tmp_path / "same")
    assert losses(method, rows, config, same) == pytest.approx(public, abs=1e-5)
    loaded = load_base(config)
    with torch.no_grad():
        loaded.model.get_input_embeddings().weight.mul_(1.5)
    other = released(method, config, loaded, tmp_path / "other")
    assert np.abs(losses(method, rows, config, other) - public).max() > 1e-3


@pytest.mark.parametrize("method", ROWS)
def test_a_row_has_the_same_loss_in_whatever_company(method, folder):
    config, rows = settings(method, folder), ROWS[method]
    together = losses(method, rows, config)
    alone = [losses(method, rows.slice(row, 1), config)[0] for row in range(3)]
    assert together == pytest.approx(alone, abs=1e-5)


def moved(method, config, place):
    """A released model of which one linear layer has changed."""
    loaded = load_base(config)
    with torch.no_grad():
        next(layer for layer in loaded.model.modules() if isinstance(layer, Conv1D)).weight.mul_(1.1)
    return released(method, config, loaded, place)


@pytest.mark.parametrize("method", ROWS)
def test_the_task_of_an_audit_scores_each_canary(method, folder, tmp_path):
    """Beside synthetic texts, as the method leaves them."""
    config, rows = settings(method, folder), ROWS[method]
    place = moved(method, config, tmp_path / "moved")
    synthetic = named_labels(pa.concat_tables([rows, rows]), NAMES.get(method, ()))
    asked = Attacked(
        row_losses=registry.get(method).row_losses,
        config=config,
        charged=config,
        queries=(),
        label_names=NAMES.get(method, ()),
        delta=1e-4,
        confidence=0.95,
        seed=0,
    )
    found = _scores_by_model(rows, synthetic, place, asked)
    assert found.shape == (3,)
    assert np.isfinite(found).all()
    assert len(set(found.tolist())) == 3


@pytest.mark.parametrize("method", ROWS)
def test_the_change_of_the_released_weights_is_read(method, folder, tmp_path):
    config, rows = settings(method, folder), ROWS[method]
    place = moved(method, config, tmp_path / "moved")
    found = shares(reading(method, rows, config), reading(method, rows, config, place), canaries=2)
    assert [one.shape for one in found] == [(2,), (2,)]
    assert np.isfinite(found).all()
    assert np.abs(found).min() > 0


def test_a_text_has_the_loss_that_the_model_itself_gives(folder):
    loaded = load_model(folder)
    ids = torch.tensor([[loaded.tokenizer.bos_token_id, *loaded.tokenizer(TEXTS[0])["input_ids"]]])
    with torch.no_grad():
        own = float(loaded.model(input_ids=ids, labels=ids).loss)
    found = losses(
        "preference-optimization", ROWS["preference-optimization"], settings("preference-optimization", folder)
    )
    assert found[0] == pytest.approx(own, abs=1e-5)


def test_another_methods_settings_and_null_pairs_are_refused(folder):
    pairs = settings("knowledge-distillation", folder)
    with pytest.raises(UnderstudyError, match="ConditionalGenerationConfig"):
        losses("conditional-generation", ROWS["conditional-generation"], pairs)
    with_null = pa.table({"instruction": ["a", None], "response": ["b", None]})
    with pytest.raises(UnderstudyError, match="null records"):
        losses("knowledge-distillation", with_null, pairs)
