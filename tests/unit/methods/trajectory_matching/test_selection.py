"""The four ways to choose rows."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from random_models import random_model
from random_students import random_rows, random_student
from transformers import BertConfig, BertLMHeadModel

from understudy.errors import InputError, TaskFailed
from understudy.generation.instructions import Pair
from understudy.methods.trajectory_matching.carriers import choose, load_selector
from understudy.methods.trajectory_matching.config import SelectionConfig, TrajectoryMatchingConfig, promised
from understudy.methods.trajectory_matching.experts import expert_student
from understudy.methods.trajectory_matching.less import less_scores
from understudy.methods.trajectory_matching.preparation import check_model
from understudy.methods.trajectory_matching.queries import queries_of
from understudy.methods.trajectory_matching.selection import (
    bm25_scores,
    dsir_scores,
    free_rows,
    highest,
    rows_wanted,
)
from understudy.methods.trajectory_matching.selection import (
    random_rows as drawn_rows,
)
from understudy.methods.trajectory_matching.student import Rows
from understudy.models import loading
from understudy.models.checkpoints import TrainingCheckpoint, export_model
from understudy.models.loading import load_model
from understudy.privacy.dpsgd import tapping
from understudy.tasks.engine.failures import closed_up

FILMS = [f"the film had a long plot and actor {n} played well" for n in range(6)]
MEALS = [f"boil the rice with salt for {n} minutes in a pot" for n in range(6)]
TARGET = ["which actor played in the film", "the plot of a film"]


def test_bm25_and_dsir_choose_what_resembles_the_target():
    texts = [text for both in zip(FILMS, MEALS, strict=True) for text in both]
    generator = np.random.default_rng(0)
    for scores in (bm25_scores(texts, TARGET), dsir_scores(texts, TARGET * 20, buckets=512, generator=generator)):
        assert highest(scores, 6) == [0, 2, 4, 6, 8, 10]


def test_a_target_without_a_known_word_scores_nothing():
    assert bm25_scores(FILMS, ["zzz"]).tolist() == [0.0] * 6


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("texts", [["", "  "], ["\n"], []])
def test_a_corpus_without_a_word_scores_nothing(texts):
    assert bm25_scores(texts, TARGET).tolist() == [0.0] * len(texts)
    drawn = dsir_scores(texts, TARGET, buckets=32, generator=np.random.default_rng(0))
    assert np.array_equal(drawn, np.random.default_rng(0).gumbel(size=len(texts)))


def test_a_text_without_a_word_among_others_scores_nothing():
    scores = bm25_scores(["", FILMS[0], " "], TARGET)
    assert scores[0] == scores[2] == 0 < scores[1]


@pytest.mark.parametrize(
    ("texts", "target"),
    [
        (["我喜欢这部电影", "今天天气很好"], ["电影很长"]),
        (["この映画が好きです", "ごはんをたべた"], ["映画"]),
        (["ฉันชอบหนังเรื่องนี้", "กขค"], ["หนัง"]),
        (["what a film 🎬", "a meal 🍚"], ["🎬"]),
    ],
    ids=["Chinese", "Japanese", "Thai", "emoji"],
)
def test_scripts_without_spaces_and_emoji_are_words(texts, target):
    bm25 = bm25_scores(texts, target)
    dsir = dsir_scores(texts, target * 200, buckets=4096, generator=np.random.default_rng(0))
    for scores in (bm25, dsir):
        assert highest(scores, 1) == [0]


def test_random_rows_differ_by_seed_and_never_repeat():
    found = [drawn_rows(50, 20, generator=np.random.default_rng(seed)) for seed in (0, 1)]
    assert found[0] != found[1]
    assert all(len(set(rows)) == 20 and rows == sorted(rows) for rows in found)


def test_less_prefers_rows_whose_gradients_resemble_the_target():
    """Rows that are the target themselves, among others."""
    student, others, target = random_student(), random_rows(8, seed=1), random_rows(3, seed=2)
    parts = ("input_ids", "attention_mask", "loss_mask")
    rows = Rows(*(torch.cat([getattr(others, name), getattr(target, name)]) for name in parts))
    config = TrajectoryMatchingConfig(selection={"projection": 2048, "warmup": 0.5, "warmup_epochs": 1})
    told = []
    scores = less_scores(student, rows, target, config, progress=lambda *step: told.append(step))
    assert highest(scores.numpy(), 3) == [8, 9, 10]
    assert (told[-1], {total for _, total in told}) == ((100, 100), {100})


def test_less_sums_cosines_of_adams_directions_and_plain_gradients_over_all_states():
    """By torch's own Adam, in so many places that hardly two coordinates share one."""
    student, rows, target = random_student(), random_rows(6, seed=1), random_rows(3, seed=2)
    selection = {"projection": 65_536, "warmup": 1.0, "warmup_epochs": 2}
    config = TrajectoryMatchingConfig(selection=selection, experts={"batch_size": 6}, tuning={"learning_rate": 0.05})
    weights = {name: value.clone().requires_grad_() for name, value in student.start.items()}
    names = sorted(weights)
    optimizer = torch.optim.Adam([weights[name] for name in names], lr=0.05)

    def slopes(some):
        return torch.autograd.grad(student.loss(weights, some, None), [weights[name] for name in names])

    def direction(gradient, parameter):
        state = optimizer.state[parameter]
        step = float(state["step"]) + 1
        first = (0.9 * state["exp_avg"] + 0.1 * gradient) / (1 - 0.9**step)
        second = (0.999 * state["exp_avg_sq"] + 0.001 * gradient.square()) / (1 - 0.999**step)
        return first / (second.sqrt() + 1e-8)

    expected = torch.zeros(6, 3)
    for _ in range(2):
        for name, slope in zip(names, slopes(rows), strict=True):
            weights[name].grad = slope
        optimizer.step()
        moves, plain = [], []
        for row in range(6):
            own = zip(slopes(rows[torch.tensor([row])]), (weights[name] for name in names), strict=True)
            moves.append(torch.cat([direction(*pair).flatten() for pair in own]))
        for row in range(3):
            plain.append(torch.cat([slope.flatten() for slope in slopes(target[torch.tensor([row])])]))
        of_rows, of_target = (torch.nn.functional.normalize(torch.stack(some), dim=1) for some in (moves, plain))
        expected += (of_rows @ of_target.T).detach()
    found = less_scores(student, rows, target, config)
    torch.testing.assert_close(found, expected.max(1).values, atol=0.03, rtol=0)


def scores_of_nine(checkpoint=None, **given):
    """Scores of nine rows by LESS; each of two states takes two steps, three target rows and the nine rows."""
    selection = {"projection": 64, "warmup": 0.5, "warmup_epochs": 2} | given.pop("selection", {})
    config = TrajectoryMatchingConfig(selection=selection, experts={"batch_size": 3}, **given)
    rows, target = random_rows(9, seed=1), random_rows(3, seed=2)
    return less_scores(random_student(), rows, target, config, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def of_an_uninterrupted_run():
    return scores_of_nine()


@pytest.mark.parametrize("killed_at", [1, 3, 8, 16, 20, 28])
def test_less_goes_on_where_it_was_killed_and_ends_in_the_same_bytes(killed_at, tmp_path, of_an_uninterrupted_run):
    taken = []

    class Sink(TrainingCheckpoint):
        def save(self, step, tensors):
            super().save(step, tensors)
            taken.append(step)
            if taken == list(range(1, killed_at + 1)):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scores_of_nine(Sink(tmp_path))
    found = scores_of_nine(Sink(tmp_path))
    assert taken == list(range(1, 29)), "nothing is computed twice"
    assert torch.equal(found, of_an_uninterrupted_run)


def test_less_warms_up_on_rows_of_its_own_for_every_public_seed():
    """torch reads 32 bits of a seed. The warm-up sees one row here, so the order of its rows makes no difference."""
    one = {"warmup": 0.01}
    found = [scores_of_nine(selection=one, public_seed=seed) for seed in (0, 2**32, 2**63 - 1)]
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_less_warms_up_on_no_more_rows_than_its_share():
    """In floats 0.28 * 25 is above 7. One step of a batch of 7, then one target row and 25 rows at the one state."""
    config = TrajectoryMatchingConfig(
        selection={"projection": 8, "warmup": 0.28, "warmup_epochs": 1}, experts={"batch_size": 7}
    )
    taken = []
    sink = SimpleNamespace(due=lambda _: True, load=lambda: None, save=lambda step, _: taken.append(step))
    less_scores(random_student(), random_rows(25), random_rows(1, seed=2), config, checkpoint=sink)
    assert taken[-1] == 1 + 1 + 25


def test_another_model_may_choose_the_rows_and_reads_them_in_its_own_tokens():
    """The distiller has no part in the choice: with either one the same rows are chosen."""
    rows = [Pair(text, "yes") for text in FILMS + MEALS]
    selection = {"strategy": "less", "rows": 4, "validation": 2, "projection": 64, "warmup": 0.3, "warmup_epochs": 1}

    def chosen(**models):
        config = TrajectoryMatchingConfig(
            model=models["model"], selection=selection | {"model": models.get("selector", "")}, max_length=48
        )
        selector = load_selector(config)
        return selector, choose(
            rows, None, config, student=expert_student(selector.model, config, 0), tokenizer=selector.tokenizer
        )

    own, by_own = chosen(model="tiny-gpt2")
    other, by_other = chosen(model="tiny-llama", selector="tiny-gpt2")
    assert (own.name, other.name) == ("tiny-gpt2", "tiny-gpt2")
    assert by_own == by_other
    distiller, _ = chosen(model="tiny-llama")
    assert distiller.name == "tiny-llama"


def test_a_model_that_nobody_asks_is_refused():
    with pytest.raises(ValidationError, match=r"selection\.model=tiny-gpt2.*selection\.strategy=less.*random"):
        SelectionConfig(model="tiny-gpt2")


def test_a_selector_that_could_not_choose_is_refused_before_the_charge(tmp_path):
    def check(model, **more):
        selection = {"strategy": "less", "model": str(model)}
        return check_model(promised(TrajectoryMatchingConfig(selection=selection, **more), has_epsilon=False))

    assert check("tiny-gpt2").name == "tiny-llama"
    with pytest.raises(InputError, match=r"selection\.model=no-such-model"):
        check("no-such-model")
    short = random_model("gpt2", vocabulary=4096, width=16, positions=64, layers=1)
    export_model(short, load_model("tiny-gpt2").tokenizer, tmp_path / "short")
    with pytest.raises(InputError, match=r"selection\.model=.*short: .*max_length=96 tokens, found 64"):
        check(tmp_path / "short")


def test_a_selection_larger_than_the_set_is_refused():
    with pytest.raises(InputError, match=r"selection\.rows=11: expected at most the 10"):
        rows_wanted(SelectionConfig(rows=11), 10)
    assert rows_wanted(SelectionConfig(ratio=0.05), 100) == 5
    assert rows_wanted(SelectionConfig(ratio=0.001), 100) == 1


@pytest.mark.parametrize("strategy", ["random", "bm25", "dsir"])
@pytest.mark.parametrize("aside", [1, 4, 16])
def test_as_many_rows_are_found_free_before_the_charge_as_are_chosen_from_after_it(strategy, aside):
    """Rows that are set aside as the target are not chosen."""
    rows = [Pair(text, "yes") for text in FILMS + MEALS]
    selection = {"strategy": strategy, "validation": aside}
    free = free_rows(SelectionConfig(**selection), 12)
    assert free == {"random": 12}.get(strategy, 12 - min(aside, 6))
    assert free_rows(SelectionConfig(**selection, target="given.parquet"), 12) == 12
    for wanted in (free, free + 1):
        config = TrajectoryMatchingConfig(selection=selection | {"rows": wanted}, carrier="selected")

        def asked(config=config):
            return queries_of(config, n=12, epsilon=math.inf, delta=1e-3)

        if wanted == free:
            assert asked() == ()
            assert len(choose(rows, None, config)) == wanted
        else:
            for refusing in (asked, lambda config=config: choose(rows, None, config)):
                with pytest.raises(InputError, match=rf"selection\.rows={wanted}: expected at most the {free} rows"):
                    refusing()


def test_public_rows_that_are_set_aside_are_not_counted_before_the_charge(tmp_path):
    pairs = pa.table({"instruction": FILMS + MEALS, "response": ["yes"] * 12})
    pq.write_table(pairs, tmp_path / "public.parquet")

    def check(rows):
        selection = {"strategy": "bm25", "validation": 2, "rows": rows}
        given = {"carriers": str(tmp_path / "public.parquet"), "carrier": "public", "selection": selection}
        return check_model(promised(TrajectoryMatchingConfig(**given), has_epsilon=True))

    assert check(10).name == "tiny-llama"
    with pytest.raises(InputError, match=r"selection\.rows=11: expected at most the 10 rows"):
        check(11)


@pytest.mark.parametrize("has_epsilon", [True, False])
def test_a_model_that_gives_no_row_a_gradient_of_its_own_is_refused_before_the_charge(
    has_epsilon, tmp_path, monkeypatch
):
    """As OPT's linear layers, which take the tokens of all rows as one text, if it were not known that they do."""
    model = random_model("opt", vocabulary=4096, width=16, positions=128, layers=1)
    export_model(model, load_model("tiny-gpt2").tokenizer, tmp_path / "opt")
    config = promised(TrajectoryMatchingConfig(model=str(tmp_path / "opt")), has_epsilon=has_epsilon)
    assert check_model(config).name == "opt", "the paper's model"
    monkeypatch.setattr(tapping, "_FLATTENING", {})
    if has_epsilon:
        with pytest.raises(InputError, match=r"opt: layer .* leading dimension .* another model, or leave --epsilon"):
            check_model(config)
    else:
        assert check_model(config).name == "opt"


def test_a_model_with_a_layer_that_no_loss_reaches_is_refused_before_the_charge(tmp_path, monkeypatch):
    """BERT's between its states and its head: experts would be trained, and then it has no gradient to be matched."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertLMHeadModel(BertConfig(vocab_size=4096, max_position_embeddings=128, is_decoder=True, **sizes))
    export_model(model, load_model("tiny-gpt2").tokenizer, tmp_path / "bert")
    config = TrajectoryMatchingConfig(model=str(tmp_path / "bert"))
    with pytest.raises(InputError, match=r"model='bert': expected logits that are the output head's"):
        check_model(promised(config, has_epsilon=False))
    monkeypatch.setattr(loading, "alters_logits", lambda _model: False)
    with pytest.raises(InputError, match=r"bert: .* not have been used .* choose another model"):
        check_model(promised(config, has_epsilon=True))
    assert check_model(promised(config, has_epsilon=False)).name == "bert"


def test_a_width_without_room_for_an_answer_is_refused_as_given_and_the_one_asked_for_is_taken(tmp_path):
    pq.write_table(pa.table({"instruction": FILMS + MEALS, "response": ["yes"] * 12}), tmp_path / "public.parquet")

    def check(width):
        given = {"carriers": str(tmp_path / "public.parquet"), "carrier": "written", "selection": {"rows": 4}}
        config = TrajectoryMatchingConfig(max_length=width, **given)
        return check_model(promised(config, has_epsilon=True))

    with pytest.raises(InputError, match=r"max_length=8: .* at least \d+ tokens") as refused:
        check(8)
    least = int(re.findall(r"at least (\d+) tokens", str(refused.value))[0])
    assert check(least).name == "tiny-llama"
    with pytest.raises(InputError, match=rf"max_length={least - 1}: .* at least {least} tokens"):
        check(least - 1)


def test_a_refusal_in_the_task_does_not_tell_prefect_how_many_rows_there_are(home):
    """Rows that are null leave fewer to choose from than were declared: how many is private."""
    rows = [Pair(text, "yes") for text in FILMS]
    config = TrajectoryMatchingConfig(selection={"strategy": "bm25", "rows": 9, "validation": 2})
    with pytest.raises(TaskFailed) as caught:
        closed_up("select-rows", lambda: choose(rows, None, config))
    assert not re.findall(r"\b[46]\b", re.sub(r"/\S+", "", str(caught.value)))
