"""What the public model makes of canaries with every candidate in the place of their secret."""

import numpy as np
import pyarrow as pa
import pytest

from understudy.artifacts.access import read_json, write_table
from understudy.auditing.canaries import INCLUDED, vocabulary
from understudy.auditing.canary_secrets import OTHERS, SECRET, candidates_of, with_last_words
from understudy.compute import ON_CPU, Compute
from understudy.data import tables
from understudy.methods import registry
from understudy.models.loading import load_model
from understudy.privacy import labels
from understudy.tasks import canary_secrets
from understudy.tasks.auditing import Attacked
from understudy.tasks.canary_secrets import read_by_public_model

METHOD = "preference-optimization"
PLAIN = pa.table({"client_id": ["a", "b"], "text": ["banka ducka", "cella della"]}, schema=tables.CLIENT_SCHEMA)


def canaries(secrets, included):
    words = vocabulary(load_model("tiny-llama").tokenizer)
    candidates = candidates_of(PLAIN, words=words, named="a")
    rows = with_last_words(PLAIN, [those[place] for those, place in zip(candidates, secrets, strict=True)])
    table = rows.append_column(INCLUDED, pa.array(included))
    table = table.append_column(OTHERS, pa.array(candidates, pa.list_(pa.string())))
    table = table.append_column(SECRET, pa.array(secrets, pa.int32()))
    return write_table(table, kind="canaries", label=labels.private("ward"))


def asked():
    config = registry.get(METHOD).config.model_validate({"model": "tiny-llama"})
    place = registry.get(METHOD).row_losses
    return Attacked(
        row_losses=place, config=config, charged=config, queries=(), label_names=(), delta=1e-4, confidence=0.95, seed=0
    )


def read(ref):
    found = read_by_public_model.fn(ref, asked())
    assert found.label == labels.private("ward")
    return np.array(read_json(found))


def test_neither_coins_nor_secrets_have_a_part_in_it_and_every_candidate_has_a_loss(home):
    first = read(canaries([3, 60], [True, False]))
    assert first.shape == (2, 64)
    assert all(len(set(of_canary)) > 32 for of_canary in first.tolist())
    assert (first == read(canaries([10, 0], [False, True]))).all()


def test_a_word_is_not_rounded_away_where_models_compute_in_bfloat16(home, monkeypatch):
    ref, found = canaries([3, 60], [True, False]), []
    for compute in (ON_CPU, Compute(precision="bfloat16")):
        monkeypatch.setattr(canary_secrets, "compute", lambda compute=compute: compute)
        found.append(read(ref))
    assert found[1] == pytest.approx(found[0], abs=1e-6)
