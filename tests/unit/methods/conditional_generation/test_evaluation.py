"""The loss of held-out texts: against a plain computation, of the same texts for both models, and told in few parts."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn import functional

from understudy.compute import ON_CPU
from understudy.data import tables
from understudy.evaluation.config import EvaluationConfig
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.statistics.comparison import MeasuredRun, figures_of
from understudy.generation.prompts import build_prompts, encode_text
from understudy.methods.conditional_generation import evaluation
from understudy.methods.conditional_generation.evaluation import chosen_rows, measure_held_out, measure_losses
from understudy.methods.conditional_generation.model import MultitaskModel, TrainedModel
from understudy.methods.conditional_generation.report import sections
from understudy.methods.conditional_generation.storage import StoredModel, save_trained
from understudy.methods.reading import RowsToRead
from understudy.models.checkpoints import export_model
from understudy.models.loading import LoadedModel, load_model

SETTINGS = EvaluationConfig(profile="tiny")
TEXTS = ["good film", None, "bad", "the plot was slowly good and the film bad", "unsure", ""]


def table(texts=TEXTS, labels=3):
    held = [None if text is None else row % labels for row, text in enumerate(texts)]
    return pa.table({"text": texts, "label": held}, schema=tables.LABELLED_SCHEMA)


@pytest.fixture
def asked(make_base, make_config, label_names, tmp_path):
    """Held-out rows for a base model in a folder and a released one with other weights."""
    base = make_base()
    export_model(base.model, base.tokenizer, tmp_path / "base")
    config = make_config(variant="naive", model=str(tmp_path / "base"), about="notes")
    with torch.no_grad():
        base.model.get_input_embeddings().weight.mul_(1.5)
    prompts = build_prompts(base.tokenizer, label_names, config.prompt, about=config.about)
    trained = TrainedModel(MultitaskModel(base.model), base.tokenizer, label_names, prompts)
    (tmp_path / "released").mkdir()
    save_trained(StoredModel(trained, config, None), tmp_path / "released")

    def asking(rows):
        return RowsToRead(rows, label_names, config, tmp_path / "released", ON_CPU)

    return asking


def plain_loss(loaded: LoadedModel, text: str, label: int, asked: RowsToRead) -> float:
    """Of one row without padding: -log p of each token of text and end, their mean."""
    config = asked.config
    prompts = build_prompts(loaded.tokenizer, asked.label_names, config.prompt, about=config.about)
    prompt = prompts.input_ids[label][prompts.attention_mask[label].bool()].tolist()
    tokens = [*encode_text(loaded.tokenizer, text, lead=prompts.lead), prompts.end][: config.train.max_length]
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return float(functional.cross_entropy(logits, torch.tensor(tokens)))


def test_both_models_losses_are_those_of_a_plain_computation(asked):
    request = asked(table())
    found = measure_held_out(request, SETTINGS)
    rows = [(text, row % 3) for row, text in enumerate(TEXTS) if text is not None]
    expected = {
        name: [plain_loss(load_model(place), text, label, request) for text, label in rows]
        for name, place in (("base", request.config.model), ("released", request.model))
    }
    for name, losses in expected.items():
        assert found.values[f"held_out.{name}.loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    difference = found.values["held_out.released_minus_base.loss"]
    assert difference == pytest.approx(np.mean(expected["released"]) - np.mean(expected["base"]), abs=1e-4)
    assert abs(difference) > 1e-2
    assert found.values["held_out.rows"] == 5, "a null record has no text"
    assert set(found.intervals) == {name for name in found.values if name.endswith(".loss")}


def test_few_enough_rows_are_chosen_by_a_public_seed_and_both_models_read_them(asked, monkeypatch):
    monkeypatch.setattr(evaluation, "MOST_ROWS", 3)
    rows = table([f"film {'plot ' * (row % 5)}" for row in range(9)])
    chosen = chosen_rows(rows, 0)
    assert chosen.num_rows == 3
    assert chosen.equals(chosen_rows(rows, 0))
    assert not chosen.equals(chosen_rows(rows, 1))
    assert measure_held_out(asked(rows), SETTINGS).values == measure_held_out(asked(chosen), SETTINGS).values


@pytest.mark.parametrize("rows", [1, 33, 70])
def test_progress_tells_nothing_of_how_many_rows_there_are(asked, rows):
    told = []
    measure_held_out(asked(table(["film"] * rows)), SETTINGS, progress=lambda *parts: told.append(parts))
    assert told == [(done, 20) for done in range(1, 21)]


def test_without_a_text_nothing_is_measured_and_the_report_says_so(asked):
    found = measure_held_out(asked(table([None, None])), SETTINGS)
    assert found.values == {}
    assert "held-out texts" in found.missing[0]
    assert sections(found, {}).last == ()


def test_the_difference_is_paired(asked):
    """Texts differ by nats, the models by a hundredth of one: only text by text that is told apart."""
    base = np.linspace(2, 9, 50)
    found = measure_losses({"base": base, "released": base - 0.01}, SETTINGS)
    low, high = found.intervals["held_out.released_minus_base.loss"]
    assert -0.011 < low <= high < -0.009
    assert np.diff(found.intervals["held_out.base.loss"]) > 0.5


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (-0.5, "training made such texts likelier."),
        (0.5, "training made such texts less likely"),
        (0.0, "no effect of the training on such texts could be measured."),
    ],
)
def test_the_report_says_what_the_training_did(shift, said):
    base = np.linspace(2, 9, 50)
    wavering = np.where(np.arange(50) % 2, 0.1, -0.1)
    (section,) = sections(measure_losses({"base": base, "released": base + shift + wavering}, SETTINGS), {}).last
    told = " ".join(section.lead)
    assert said in told
    assert f"is {5.5 + shift:.3f} nats per token under the released model and 5.500 under the untrained" in told
    assert [row[0] for row in section.table.rows] == ["The untrained base model", "The released model"]
    assert all(row[2] for row in section.table.rows)


def test_a_comparison_shows_it_by_epsilon():
    losses = {"base": np.ones(20), "released": np.full(20, 0.5)}
    figures = figures_of([MeasuredRun("some-method", 0, measure_losses(losses, SETTINGS))])
    assert {"held_out.released.loss", "held_out.released_minus_base.loss"} == {figure.pattern for figure in figures}
    assert sections(Metrics(), {}).last == ()
