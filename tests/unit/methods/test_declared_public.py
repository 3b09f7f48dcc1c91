"""What a run declares as public names tables, and says nothing of where they lie."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy.methods import registry
from understudy.methods.method import Promise

# Method -> settings with a public table at the given place -> under which names it is declared.
DECLARING = {
    "knowledge-distillation": (
        lambda pairs, texts: {"seed": {"pairs": pairs}, "instructions": {"examples": texts}},
        {"public seed set": "pairs.parquet", "public examples": "texts.parquet"},
    ),
    "preference-optimization": (
        lambda _, texts: {"seeds": texts, "preferences": {"learning_rate": 1e-3}},
        {"public seed texts": "texts.parquet"},
    ),
    "trajectory-matching": (
        lambda pairs, _: {"carriers": pairs, "carrier": "public", "selection": {"target": pairs}},
        {
            "rows that carry pseudo tokens": "pairs.parquet",
            "rows that the chosen ones resemble": "pairs.parquet",
        },
    ),
}


@pytest.fixture
def public_tables(tmp_path):
    """Pairs, and rows that are texts and instructions."""
    pairs, texts = tmp_path / "pairs.parquet", tmp_path / "texts.parquet"
    pq.write_table(pa.table({"instruction": ["ask"] * 8, "response": ["answer"] * 8}), pairs)
    words = [f"words of {number}" for number in range(8)]
    pq.write_table(pa.table({"text": words, "instruction": words}), texts)
    return str(pairs), str(texts)


@pytest.mark.parametrize("name", DECLARING)
def test_public_tables_are_named_without_their_place(name, public_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    method, (settings, declared) = registry.get(name), DECLARING[name]
    config = method.config.model_validate(settings(*public_tables))
    if method.charge.by_epsilon is not None:
        config = method.charge.by_epsilon(config, True)
    config = method.preparation.resolve(config, 400, (), 8.0)
    queries = method.charge.queries(config, n=400, epsilon=8.0, delta=1e-4)
    description = method.preparation.describe(config, Promise(queries, 400, 8.0, 1e-4))
    assert str(tmp_path) not in json.dumps(description.model_dump(mode="json"))
    for key, table in declared.items():
        assert description.declared_public[key].startswith(f"{table} (sha256 ")
