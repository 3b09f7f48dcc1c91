"""What is left of a target for whoever knows all rows but the canaries: the canaries' own gradients."""

import math

import pytest
import torch

from understudy.auditing.known_rows import coin_scores
from understudy.compute import ON_CPU
from understudy.data import tables
from understudy.data.private_rows import PrivateRows
from understudy.methods.gradient_matching import left_over as module
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.left_over import left_over
from understudy.methods.gradient_matching.queries import Asked, queries_of, schedule_of
from understudy.methods.gradient_matching.release import release_target, save_target
from understudy.methods.reading import Made, SumsToRead
from understudy.privacy.grid import charged_sensitivity

OTHERS = [
    {"text": "the plot was bad", "label": 0},
    {"text": None, "label": None},
    {"text": "a good slow film " * 6, "label": 1},
    {"text": "", "label": 2},
    {"text": "good", "label": 1},
    {"text": "slowly the film", "label": None},
]
CANARIES = [{"text": f"{word} {word} {word}", "label": place % 3} for place, word in enumerate("abcdefgh")]
COINS = [True, False, False, True, True, True, False, False]
NULL = {"text": None, "label": None}


def settings(kind="sketch", **changes):
    target = {"kind": kind, "sketch_dimension": 96, "l2_clip_norm": 0.7}
    return GradientMatchingConfig.model_validate({"max_length": 9, "length": 6, "target": target, **changes})


def read(base, make_mechanisms, names, config, folder, monkeypatch, *, epsilon=math.inf, charge="charge"):
    """A release among whose rows canaries stand by coins, and what is left of it."""
    met = [*OTHERS, *(row if coin else NULL for row, coin in zip(CANARIES, COINS, strict=True))]
    queries = queries_of(config, n=len(met), epsilon=epsilon, delta=1e-5)
    schedule = schedule_of(queries)
    private = PrivateRows([row["text"] for row in met], [row["label"] for row in met], names)
    target = release_target(private, Asked(config, schedule, make_mechanisms(schedule, charge=charge)), base=base)
    folder.mkdir()
    save_target(target, folder)
    monkeypatch.setattr(module, "load_base", lambda *_: base)
    canaries, others = (
        tables.pa.Table.from_pylist(rows, schema=tables.LABELLED_SCHEMA)
        for rows in (CANARIES, [*OTHERS, *[NULL] * len(CANARIES)])
    )
    return left_over(SumsToRead(canaries, others, names, config, queries, Made("target", folder), ON_CPU))


@pytest.mark.parametrize("kind", ["head", "label_rows", "sketch"])
def test_without_noise_the_coins_are_read_off(make_base, make_mechanisms, label_names, kind, tmp_path, monkeypatch):
    base = make_base("gpt2", bias=True)
    found = read(base, make_mechanisms, label_names, settings(kind), tmp_path / "target", monkeypatch)
    assert found.deviation == 0
    assert coin_scores(found) == pytest.approx([0.5 if coin else -0.5 for coin in COINS], abs=0.01)


def test_of_the_other_rows_a_few_are_held_at_a_time(make_base, make_mechanisms, label_names, tmp_path, monkeypatch):
    """A row's factor is as long as the vocabulary."""
    held, exact = [], module.targets.clipped_sum
    monkeypatch.setattr(
        module.targets, "clipped_sum", lambda *parts, **into: held.append(len(parts[1])) or exact(*parts, **into)
    )
    monkeypatch.setattr(module, "_BATCH", 3)
    found = read(make_base("gpt2"), make_mechanisms, label_names, settings("head"), tmp_path / "target", monkeypatch)
    assert held == [3, 3, 3, 3, 2, len(CANARIES)]
    assert coin_scores(found) == pytest.approx([0.5 if coin else -0.5 for coin in COINS], abs=0.01)


def test_products_are_those_of_the_clipped_gradients_of_single_canaries(
    make_base, make_mechanisms, label_names, tmp_path, monkeypatch
):
    """Each canary alone is released, and so is what it adds."""
    base, config = make_base("llama"), settings("head")
    found = read(base, make_mechanisms, label_names, config, tmp_path / "target", monkeypatch)
    added = []
    for row in CANARIES:
        schedule = schedule_of(queries_of(config, n=1, epsilon=math.inf, delta=1e-5))
        asked = Asked(config, schedule, make_mechanisms(schedule))
        alone = release_target(PrivateRows([row["text"]], [row["label"]], label_names), asked, base=base)
        added.append(alone.stacked.double().flatten())
    added = torch.stack(added)
    assert added.norm(dim=1) == pytest.approx(0.7, rel=1e-3)
    coins = torch.tensor(COINS).double() - 0.5
    assert torch.allclose(found.gram, added @ added.T, atol=1e-5)
    assert torch.allclose(found.against, added @ (coins @ added), atol=1e-5)


def test_the_noise_is_that_of_the_query(make_base, make_mechanisms, label_names, tmp_path, monkeypatch):
    """What canaries see of it has the deviation that is told, times the length of what each adds."""
    base, config = make_base("llama"), settings("sketch")
    seen = []
    for number in range(12):
        asked = {"epsilon": 2.0, "charge": f"charge {number}"}
        found = read(base, make_mechanisms, label_names, config, tmp_path / f"{number}", monkeypatch, **asked)
        coins = torch.tensor(COINS).double() - 0.5
        seen.append((found.against - found.gram @ coins) / found.gram.diagonal().sqrt())
    schedule = schedule_of(queries_of(config, n=len(OTHERS) + len(CANARIES), epsilon=2.0, delta=1e-5))
    assert found.deviation == pytest.approx(schedule.noise_multiplier * charged_sensitivity(0.7))
    # 12 draws, seen by 8 canaries in three labels: 36 independent numbers at least. The key is the tests' own, and so
    # the noise is the same in every run.
    assert float(torch.stack(seen).std()) == pytest.approx(found.deviation, rel=0.3)


def test_a_target_of_all_weights_has_no_such_attacker(make_base, make_mechanisms, label_names, tmp_path, monkeypatch):
    config = settings("head", matching={"gradient": "full"})
    found = read(make_base("llama"), make_mechanisms, label_names, config, tmp_path / "target", monkeypatch)
    assert found is None
