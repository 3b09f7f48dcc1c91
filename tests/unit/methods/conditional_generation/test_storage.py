"""A stored model says what it was trained with, and nothing of where that lay."""

import dataclasses
import re

import numpy as np
import pytest

from understudy.errors import InputError
from understudy.methods.conditional_generation import generate as module
from understudy.methods.conditional_generation.class_means import ClassMeans
from understudy.methods.conditional_generation.encode import prompts_of
from understudy.methods.conditional_generation.more import further_rows
from understudy.methods.conditional_generation.storage import (
    HEADS_FILE,
    MEANS_FILE,
    StoredModel,
    load_trained,
    save_trained,
)
from understudy.methods.further import FurtherDraw


def test_a_stored_model_names_its_base_model_without_its_place(untrained, make_config, tmp_path):
    place = tmp_path / "models" / "own"
    config = make_config(model=str(place), model_digest="a" * 64)
    folder = tmp_path / "export" / "model"
    folder.mkdir(parents=True)
    save_trained(StoredModel(untrained, config, (5, 4, 3)), folder)
    assert not [path for path in folder.rglob("*") if bytes(tmp_path) in path.read_bytes()]
    again = load_trained(folder)
    assert (again.settings.model, again.settings.model_digest, again.class_counts) == ("own", "a" * 64, (5, 4, 3))
    assert again.settings.model_copy(update={"model": config.model}) == config


def test_further_rows_need_no_base_model(untrained, make_config, label_names, tmp_path):
    config = make_config(model=str(tmp_path / "nowhere"), selection={"draws": 1})
    folder = tmp_path / "export" / "model"
    folder.mkdir(parents=True)
    save_trained(StoredModel(untrained, config, None), folder)
    alone = FurtherDraw(folder=folder.parent, record=None, samples=6, seed_step=1)
    recorded = dataclasses.replace(alone, record={"config": config.model_dump(mode="json")})
    rows = further_rows(alone)
    assert rows.equals(further_rows(recorded))
    assert set(rows["label"].to_pylist()) == set(label_names)


def test_a_stored_model_keeps_its_topics_and_further_rows_follow_their_histogram(
    untrained, make_config, label_names, tmp_path, monkeypatch
):
    config = make_config(selection={"draws": 1}, topics={"keywords": [["film", "plot"], ["slowly"]]})
    trained = dataclasses.replace(untrained, prompts=prompts_of(untrained.tokenizer, label_names, config))
    counts, folder = (9, 0, 0, 9, 5, 5), tmp_path / "export" / "model"
    folder.mkdir(parents=True)
    save_trained(StoredModel(trained, config, None, topic_counts=counts), folder)
    again = load_trained(folder)
    assert again.topic_counts == counts
    assert again.settings.topics == config.topics
    assert again.trained.prompts.input_ids.equal(trained.prompts.input_ids)
    asked, plain = [], module.generate
    monkeypatch.setattr(
        module,
        "generate",
        lambda model, labels, *, topics, **options: (
            asked.extend(zip(labels, topics, strict=True)) or plain(model, labels, topics=topics, **options)
        ),
    )
    further_rows(FurtherDraw(folder=folder.parent, record=None, samples=12, seed_step=1))
    assert asked == [(0, 0)] * 4 + [(1, 1)] * 4 + [(2, 0)] * 2 + [(2, 1)] * 2


@pytest.mark.parametrize("lost", [HEADS_FILE, MEANS_FILE])
def test_a_model_that_lost_a_file_is_refused(lost, untrained, make_config, label_names, tmp_path):
    """It would write all the same, and nothing would steer or select its texts."""
    means = ClassMeans(np.ones((len(label_names), 4), np.float32), np.ones(len(label_names), np.float32), "e" * 64)
    save_trained(StoredModel(untrained, make_config(), None, means), tmp_path)
    assert load_trained(tmp_path).class_means is not None
    (tmp_path / lost).unlink()
    with pytest.raises(InputError, match=f"expected {re.escape(lost)} beside understudy.json"):
        load_trained(tmp_path)
