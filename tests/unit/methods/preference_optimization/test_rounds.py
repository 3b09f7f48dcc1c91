"""Rounds as the server sees them: which random numbers a label's texts use, and under which name a policy is served."""

from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import torch
from completions_server import Completions

from understudy.errors import InputError
from understudy.generation.prompts import row_seeds
from understudy.methods.further import FurtherDraw
from understudy.methods.preference_optimization import dpo_pairs, more, rounds
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.methods.preference_optimization.evaluation import _not_learnt
from understudy.methods.preference_optimization.method import METHOD
from understudy.methods.preference_optimization.stored import CANDIDATE_SCHEMA, Candidates
from understudy.models.adapters import merge_adapter
from understudy.models.loading import LoadedModel, load_model
from understudy.runs.overrides import apply_overrides

SEEDS = [f"seed text number {number} about the weather" for number in range(30)]
CANDIDATES = {
    "prompts": 4,
    "per_prompt": 2,
    "seed_tokens": 8,
    "instruction": "Texts that are {label}:",
    "sampling": {"max_new_tokens": 4, "top_p": 1.0},
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return load_model("tiny-llama")


def made(**given) -> PreferenceOptimizationConfig:
    fields = {"rounds": 2, "samples": 6, "candidates": CANDIDATES, "preferences": {"rejected_rank": 2}}
    return PreferenceOptimizationConfig.model_validate(fields | given)


@pytest.fixture
def asked(monkeypatch):
    """(round, seeds) of every draw, which writes a text that names them."""
    seen = []

    def drawn(policy, prompts, shape, *, seed, progress=None):
        numbers = seed.of_texts(range(len(prompts) * shape.per_prompt))
        seen.append((seed.round, numbers))
        return [f"text {number}" for number in numbers]

    monkeypatch.setattr(rounds, "continue_prompts", drawn)
    return seen


@pytest.mark.parametrize("trained", [True, False])
def test_exported_texts_of_two_labels_are_drawn_with_different_random_numbers(llama, asked, trained):
    """Equal ones would make text j of a label resemble text j of every other."""
    config, names = made(variant="central_conditional", public_seed=7), ("bad", "good", "mixed")
    table, _ = rounds.write_texts(llama, SEEDS, config=config, label_names=names, trained=trained)
    assert [round for round, _ in asked] == [2] * 3
    numbers = [seed for _, seeds in asked for seed in seeds]
    assert len(set(numbers)) == len(numbers) == 6
    assert numbers == [seed for label in range(3) for seed in row_seeds(7 + label, range(2), purpose="candidate/2")]
    assert table["label"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert table["text"].to_pylist() == [f"text {number}" for number in numbers]


def test_candidates_of_a_round_have_the_numbers_of_their_label_too(llama, asked):
    config = made(variant="central_conditional", public_seed=7)
    found = rounds.propose(
        llama,
        SEEDS,
        config=config,
        label_names=("bad", "good"),
        round=1,
        encode=lambda texts: np.zeros((len(texts), 3), np.float32),
    )
    assert found.table["label"].to_pylist() == [0] * 8 + [1] * 8
    assert asked == [(1, row_seeds(7 + label, range(8), purpose="candidate/1")) for label in range(2)]


def test_a_url_without_a_name_for_each_round_is_refused():
    """Under one name every round, the last texts and their control would be written by one model."""
    for settings in (["endpoint.url=http://host/v1"], ["endpoint.url=http://host/v1", "endpoint.model=mine"]):
        with pytest.raises(InputError, match=r"endpoint\.model=(policy|mine): expected \{round\}.*policy-\{round\}"):
            apply_overrides(made(), settings)
    named = apply_overrides(made(), ["endpoint.url=http://host/v1", "endpoint.model=mine-{round}"])
    assert named.endpoint.model == "mine-{round}"
    assert apply_overrides(made(), ["endpoint.model=mine"]).endpoint.url is None


def test_every_round_the_texts_and_their_control_are_asked_of_their_own_policy(llama, tmp_path):
    with Completions() as server:
        plain = CANDIDATES | {"instruction": "Texts:"}
        config = made(candidates=plain, endpoint={"url": server.url, "model": "policy-{round}"})
        names = []

        def asked(step, **given):
            server.requests.clear()
            step(llama, SEEDS, config=config, label_names=(), answers=tmp_path, **given)
            names.append({request["model"] for request in server.requests})

        def encode(texts):
            return np.zeros((len(texts), 3), np.float32)

        for number in range(2):
            asked(rounds.propose, round=number, encode=encode)
        for trained in (True, False):
            asked(rounds.write_texts, trained=trained)
        assert names == [{"policy-0"}, {"policy-1"}, {"policy-2"}, {"policy-0"}]
        with pytest.raises(ValueError, match="answers=None"):
            rounds.propose(llama, SEEDS, config=config, label_names=(), round=0, encode=encode)


def test_a_run_with_an_endpoint_that_would_be_refused_today_gives_further_texts(llama, asked, tmp_path, monkeypatch):
    """They are drawn from its exported model, in this process."""
    record = made(candidates=CANDIDATES | {"instruction": "Texts:"}).model_dump(mode="json")
    record["endpoint"] |= {"url": "http://host/v1", "model": "policy"}
    (tmp_path / "model").mkdir()
    monkeypatch.setattr("understudy.models.loading.load_model", lambda _: llama)
    draw = FurtherDraw(tmp_path, {"config": record, "label_names": []}, samples=3, seed_step=1)
    assert more.further_rows(draw)["text"].to_pylist() == [f"text {number}" for number in asked[0][1]]
    assert len(asked[0][1]) == 3


def test_further_texts_are_drawn_with_the_seed_texts_of_the_run(llama, asked, tmp_path, monkeypatch):
    """Prompts show them. What lies at the same place now was never searched for private rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("understudy.models.loading.load_model", lambda _: llama)
    (tmp_path / "model").mkdir()
    seeds = tmp_path / "seeds.csv"
    seeds.write_text("text\na public text\nanother one\nand a third\nand a last\n")
    preferences = {"rejected_rank": 2, "learning_rate": 1e-3}
    config = METHOD.preparation.resolve(made(seeds=seeds.name, preferences=preferences), 20, (), 1.0)
    record = {"config": config.model_dump(mode="json"), "label_names": []}
    draw = FurtherDraw(tmp_path, record, samples=3, seed_step=1)
    assert len(more.further_rows(draw)) == 3
    seeds.write_text(seeds.read_text().replace("public", "private"))
    with pytest.raises(InputError, match=r"^seeds=seeds\.csv: expected the texts that the run began with"):
        more.further_rows(draw)


def same_candidates() -> Candidates:
    table = pa.table({"prompt": ["Say:"] * 4, "text": ["so be it"] * 4, "label": [None] * 4}, schema=CANDIDATE_SCHEMA)
    return Candidates(table, np.eye(4, dtype=np.float32))


def test_a_round_without_a_pair_of_two_texts_leaves_the_adapter_as_it_is(llama, tmp_path):
    config = made(preferences={"rejected_rank": 2, "learning_rate": 1e-3, "lora_rank": 2})
    learn = partial(rounds.prefer, llama, config=config, folder=tmp_path)
    scores = torch.arange(4.0)
    first, facts = learn(None, same_candidates(), scores, round=0)
    assert facts == {"pairs": 0, "identical": 2, "trained": 0}
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        plain, adapted = (
            merge_adapter(load_model("tiny-llama"), adapter, alpha=config.preferences.lora_alpha).model(ids).logits
            for adapter in (None, first)
        )
    assert torch.equal(plain, adapted), "of the first round, start values that change no text"
    moved = {name: tensor + 1 for name, tensor in first.items()}
    second, _ = learn(moved, same_candidates(), scores, round=1)
    assert all(torch.equal(second[name], moved[name]) for name in moved)
    assert second.keys() == moved.keys()


def two_prompts(*texts: str) -> Candidates:
    table = pa.table({"prompt": ["Say:"] * 4, "text": texts, "label": [None] * 4}, schema=CANDIDATE_SCHEMA)
    return Candidates(table, np.eye(4, dtype=np.float32))


LONG = "so be it " * 400


@pytest.mark.parametrize(
    ("texts", "rate", "start", "why"),
    [
        (("one", " one", "two", "two "), 1e-3, 0.01, "the same tokens"),
        (("one", LONG, "two", LONG), 1e-3, 0.01, "longer than the context"),
        (("one", " one", "two", LONG), 1e-3, 0.01, "both"),
        (("one", "other", "two", "second"), 1e-30, 0.01, "moves nothing"),
        (("one", "other", "two", "second"), 1.0, 1e30, "not finite"),
    ],
)
def test_pairs_that_teach_nothing_do_not_end_a_round_and_no_log_tells(llama, tmp_path, caplog, texts, rate, start, why):
    """Which texts are chosen, and so whether one fits the context, is the clients' without noise."""
    config = made(preferences={"rejected_rank": 2, "learning_rate": rate, "lora_rank": 2})
    first, _ = rounds.prefer(llama, None, same_candidates(), torch.arange(4.0), config=config, folder=tmp_path, round=0)
    before = {name: tensor + start for name, tensor in first.items()}
    after, facts = rounds.prefer(
        llama, before, two_prompts(*texts), torch.arange(4.0), config=config, folder=tmp_path, round=1
    )
    assert facts == {"pairs": 2, "identical": 0, "trained": 0}, why
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not caplog.records


def test_a_round_says_how_many_pairs_it_was_trained_on(llama, tmp_path, caplog):
    config = made(preferences={"rejected_rank": 2, "learning_rate": 1e-3, "lora_rank": 2, "epochs": 1})
    pairs = two_prompts("one", "other", "two", LONG)
    adapter, facts = rounds.prefer(llama, None, pairs, torch.arange(4.0), config=config, folder=tmp_path, round=0)
    assert facts == {"pairs": 2, "identical": 0, "trained": 1}
    assert all(torch.isfinite(tensor).all() for tensor in adapter.values())
    assert not caplog.records


def test_a_round_reads_its_pairs_once(llama, tmp_path, monkeypatch):
    begun, plain = [], dpo_pairs.text_writer
    monkeypatch.setattr(dpo_pairs, "text_writer", lambda *given, **named: begun.append(1) or plain(*given, **named))
    config = made(preferences={"rejected_rank": 2, "learning_rate": 1e-3, "lora_rank": 2, "epochs": 1})
    pairs = two_prompts("one", "other", "two", "second")
    _, facts = rounds.prefer(llama, None, pairs, torch.arange(4.0), config=config, folder=tmp_path, round=0)
    assert (facts["trained"], begun) == (2, [1])


@pytest.mark.parametrize(
    ("differ", "trained", "said"),
    [
        (0, 0, "training in round 2: chosen and rejected text were the same for every prompt"),
        (3, 0, "training in round 2: no pair of two texts fits"),
        (3, 1, "training in round 2: 2 of 3 pairs"),
        (3, 3, None),
    ],
)
def test_the_report_says_what_a_round_did_not_train_on(differ, trained, said):
    found = _not_learnt(2, differ=differ, trained=trained)
    assert [reason[: len(said or "")] for reason in found] == ([] if said is None else [said])
