"""Class means: what one row moves, what is released, and which texts are kept by it."""

import math
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError, UnderstudyError
from understudy.evaluation.texts import encoder as encoder_module
from understudy.evaluation.texts.encoder import Encoder, embed
from understudy.methods.conditional_generation import class_means
from understudy.methods.conditional_generation.class_means import ClassMeans, margins, nearest, release_class_means
from understudy.methods.conditional_generation.generate import synthesize
from understudy.methods.conditional_generation.method import charged_settings
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.storage import SETTINGS_FILE, StoredModel, load_trained, save_trained
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.progress import Course

NAMES = ("bad", "good")
D = 5


def spread(texts):
    """A vector of any length per text, from its letters alone."""
    found = np.array([[math.sin(ord(c) * (i + 1)) for i in range(D)] for c in (t[0] for t in texts)], np.float32)
    return found * np.array([[len(t)] for t in texts], np.float32)


def sentences(encode=spread, digest: str = "d" * 64) -> Encoder:
    return Encoder("letters", digest, D, encode)


class Listening:
    """Keeps the exact query of every call."""

    def __init__(self):
        self.queries = []

    def observe(self, _call, query, draw):
        self.queries.append({name: value.clone() for name, value in query.items()})
        return draw()


@pytest.fixture
def asked(make_config, make_mechanisms):
    def asked(n: int, epsilon: float = math.inf, recorder=None) -> Asked:
        config = make_config()
        schedule = schedule_of(queries_of(config, n=n, epsilon=epsilon, delta=1e-3))
        return Asked(config, schedule, make_mechanisms(schedule, recorder))

    return asked


def rows(count: int = 30) -> PrivateRows:
    texts = [None if i == 4 else f"{chr(97 + i % 11)}{'x' * (i % 7)}" for i in range(count)]
    return PrivateRows(texts, [None if i == 7 else (i * i) % 2 for i in range(count)], NAMES)


@pytest.mark.parametrize("at_once", [8, 1 << 15])
def test_without_noise_they_are_the_means_of_unit_vectors(asked, monkeypatch, at_once):
    monkeypatch.setattr(class_means, "_ROWS_IN_FLOATS", at_once)
    private = rows()
    listening = Listening()
    found = release_class_means(private, asked(30, recorder=listening), sentences())
    texts = [(t, y) for t, y in zip(private.texts, private.labels, strict=True) if t is not None and y is not None]
    for label in range(2):
        vectors = spread([t for t, y in texts if y == label]).astype(np.float64)
        mean = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(0)
        assert np.allclose(found.vectors[label], mean, atol=1e-6)
        counted = float(listening.queries[0]["counts"][label])
        assert counted == pytest.approx(len(vectors) * 0.5 / math.sqrt(1.25), abs=1e-5)
    assert not found.noise.any()


def test_an_empty_text_is_a_row_and_leaves_the_others_with_their_own_embeddings(asked):
    private = rows()
    texts = ["" if i == 2 else text for i, text in enumerate(private.texts)]
    listening = Listening()

    def encode(texts):
        return spread([text or "-" for text in texts])

    release_class_means(PrivateRows(texts, private.labels, NAMES), asked(30, recorder=listening), sentences(encode))
    for label in range(2):
        own = [text for text, y in zip(texts, private.labels, strict=True) if text is not None and y == label]
        units = [vector / np.linalg.norm(vector) for vector in encode(own).astype(np.float64)]
        assert np.allclose(listening.queries[0]["sums"][label], sum(units) / math.sqrt(1.25), atol=1e-5)
        assert float(listening.queries[0]["counts"][label]) == pytest.approx(len(own) * 0.5 / math.sqrt(1.25), abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 1e-30, 3e38, math.inf, math.nan])
def test_one_row_moves_the_whole_query_by_one_at_most(asked, value):
    """Whatever the encoder makes of it; the other rows' part stays as it is, to the last bit."""
    private, seen = rows(), []

    def strange(texts):
        return np.full((1, D), value, np.float32) if texts == ["strange"] else spread(texts)

    for text in ("strange", None):
        changed = PrivateRows([text if i == 11 else t for i, t in enumerate(private.texts)], private.labels, NAMES)
        listening = Listening()
        release_class_means(changed, asked(30, recorder=listening), sentences(strange))
        seen.append(listening.queries[0])
    moved = {name: (seen[0][name] - seen[1][name]).double() for name in seen[0]}
    assert math.sqrt(sum(float((part**2).sum()) for part in moved.values())) <= 1 + 1e-6
    assert float(moved["counts"][1]) == pytest.approx(0.5 / math.sqrt(1.25), abs=1e-6)
    assert not moved["counts"][0]
    assert not moved["sums"][0].any()


def test_a_text_is_embedded_alone(asked):
    sizes = set()

    def counting(texts):
        sizes.add(len(texts))
        return spread(texts)

    release_class_means(rows(), asked(30), sentences(counting))
    assert sizes == {1}


def test_the_evaluation_finds_the_embeddings(asked, tmp_path):
    private, read = rows(), []
    release_class_means(private, asked(30), sentences(), embeddings=tmp_path)

    def noted(texts):
        read.extend(texts)
        return spread(texts)

    texts = [text for text in private.texts if text is not None]
    assert len(texts) > len([text for text in private.valid_texts if text is not None])  # one without a label
    embed(texts, sentences(noted), cache=tmp_path)
    unseen = set(texts) - set(private.valid_texts)
    assert set(read) == unseen


@pytest.mark.parametrize("at_once", [8, 1 << 15])
def test_a_killed_pass_over_the_rows_goes_on_where_it_was(asked, tmp_path, monkeypatch, at_once):
    """To the same bits, and no row that was embedded is embedded again, by the evaluation neither."""
    monkeypatch.setattr(class_means, "_ROWS_IN_FLOATS", at_once)
    given = {"embeddings": tmp_path / "embeddings"}
    calm, seen, private = Listening(), [], rows()
    release_class_means(private, asked(30, recorder=calm), sentences())

    def watched(texts):
        if len(seen) == 17:
            seen.append("killed")
            raise KeyboardInterrupt
        seen.append(texts[0])
        return spread(texts)

    resumed = Listening()
    for attempt in range(2):
        course = Course(TrainingCheckpoint(tmp_path / "state", every=1))
        with pytest.raises(KeyboardInterrupt) if not attempt else nullcontext():
            release_class_means(private, asked(30, recorder=resumed), sentences(watched), course=course, **given)
    assert seen == [*[t for t in private.valid_texts if t][:17], "killed", *[t for t in private.valid_texts if t][17:]]
    texts = [text for text in private.valid_texts if text is not None]
    assert np.array_equal(embed(texts, sentences(None), cache=given["embeddings"]), spread(texts))
    (expected,), (found,) = calm.queries, resumed.queries
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_progress_tells_of_slots_whatever_they_hold(asked):
    told = []
    release_class_means(rows(), asked(30), sentences(), course=Course(progress=lambda *step: told.append(step)))
    assert told == [(slot + 1, 30) for slot in range(30)]


def test_means_that_were_released_are_read_back_and_others_under_the_charge_refused(asked, tmp_path):
    """A lost checkpoint makes them anew: another encoder, or other last digits, must not get noise of their own."""

    def release(encode=spread):
        charged = asked(30, epsilon=3.0)
        charged.mechanisms.release_log = tmp_path
        return release_class_means(rows(), charged, sentences(encode))

    first, again = release(), release()
    assert np.array_equal(first.vectors, again.vectors)
    with pytest.raises(UnderstudyError, match="a second release that nobody paid for"):
        release(lambda texts: spread(texts) + np.float32(1e-3))


def test_noise_is_as_charged_and_a_mean_is_never_longer_than_one(asked):
    """Of a class that has no rows, noise alone is left."""
    private = PrivateRows(["a"] * 400, [0] * 400, NAMES)
    charged = asked(400, epsilon=3.0)
    found = release_class_means(private, charged, sentences())
    assert np.linalg.norm(found.vectors, axis=1).max() <= 1 + 1e-6
    assert found.noise[0] == pytest.approx(charged.schedule.means_noise / 400 * math.sqrt(1.25), rel=0.2)
    assert found.noise[1] > 5 * found.noise[0]


def test_a_margin_is_half_the_difference_of_squared_distances():
    draws = np.random.default_rng(0)
    vectors, texts = draws.normal(size=(3, D)) / 4, draws.normal(size=(20, D))
    labels = [i % 3 for i in range(20)]
    means = ClassMeans(vectors.astype(np.float32), np.zeros(3, np.float32), "d" * 64)
    distances = ((texts[:, None] - vectors[None]) ** 2).sum(2)
    expected = [min(np.delete(d, y)) / 2 - d[y] / 2 for d, y in zip(distances, labels, strict=True)]
    assert np.allclose(margins(means, texts.astype(np.float32), labels), expected, atol=1e-6)
    alone = ClassMeans(means.vectors[:1], means.noise[:1], means.encoder)
    assert not margins(alone, texts.astype(np.float32), [0] * 20).any()


def test_the_noise_of_a_mean_does_not_push_its_texts_away():
    """The squared length of a noised mean is too large by the noise's own, and that is taken off."""
    truth = np.array([[0.3, 0, 0], [-0.3, 0, 0]])
    texts, right = np.array([[0.1, 0, 0], [-0.1, 0, 0]], np.float32), 0
    for seed in range(50):
        wide = np.zeros((2, 400))
        wide[:, :3] = truth
        wide[0] += np.random.default_rng(seed).normal(size=400) * 0.02
        means = ClassMeans(wide.astype(np.float32), np.array([0.02, 0], np.float32), "")
        right += int((margins(means, np.pad(texts, ((0, 0), (0, 397))), [0, 1]) > 0).all())
    assert right > 40, "without it each text is given to the class without noise"


def test_the_nearest_are_kept_in_the_order_of_drawing():
    texts, margin = ["a", "b", "c", "b", "d", "e"], [0.1, 0.9, -0.3, 0.9, 0.5, 0.5]
    assert nearest(texts, margin, most=2) == [1, 4]
    assert nearest(texts, margin, most=3) == [1, 4, 5]
    assert nearest(texts, margin, most=5) == [0, 1, 2, 4, 5], "a repetition stands behind the worst"
    assert nearest(texts, margin, most=9) == list(range(6))


def test_of_several_draws_the_nearest_stay(untrained, make_config, label_names, monkeypatch):
    monkeypatch.setattr(encoder_module, "load_encoder", lambda **_: sentences())
    draws = np.random.default_rng(1)
    means = ClassMeans(draws.normal(size=(3, D)).astype(np.float32) / 4, np.zeros(3, np.float32), "d" * 64)
    short = {"steering": {"steer": "none"}, "sampling": {"max_new_tokens": 4}}
    config = make_config(generate=short, selection={"draws": 5})
    sizes = {"negative": 3, "positive": 2}
    found = synthesize(untrained, sizes, config=config, means=means)
    pool = synthesize(untrained, {name: 5 * count for name, count in sizes.items()}, config=config)
    assert found.drawn["negative"] >= 15
    assert found.dropped["negative"]["outranked"] == 12
    assert found.table["label"].to_pylist() == [0] * 3 + [1] * 2
    kept = found.table["text"].to_pylist()
    for label, name in enumerate(sizes):
        texts = [t for t, y in zip(*pool.table.to_pydict().values(), strict=True) if y == label]
        margin = margins(means, spread(texts), [label] * len(texts))
        assert [t for t, y in zip(kept, found.table["label"].to_pylist(), strict=True) if y == label] == [
            texts[i] for i in nearest(texts, margin.tolist(), most=sizes[name])
        ]
    every = synthesize(untrained, sizes, config=make_config(selection={"draws": 1}), means=means)
    assert not every.dropped
    with pytest.raises(InputError, match=r"digest ffffffffffff.*install"):
        synthesize(untrained, sizes, config=config, means=replace(means, encoder="f" * 64))


def test_a_model_keeps_its_class_means(untrained, make_config, tmp_path):
    means = ClassMeans(np.ones((3, D), np.float32) / 9, np.full(3, 0.25, np.float32), "e" * 64)
    for folder, given in (("with", means), ("without", None)):
        (tmp_path / folder).mkdir()
        save_trained(StoredModel(untrained, make_config(), None, given), tmp_path / folder)
    again = load_trained(tmp_path / "with").class_means
    assert again.encoder == means.encoder
    assert np.array_equal(again.vectors, means.vectors)
    assert np.array_equal(again.noise, means.noise)
    assert load_trained(tmp_path / "without").class_means is None
    described = tmp_path / "with" / SETTINGS_FILE
    described.write_text(described.read_text().replace(means.encoder, ""))
    with pytest.raises(InputError, match="digest unknown"):
        class_means.check_encoder(load_trained(tmp_path / "with").class_means, sentences())


def test_how_many_are_drawn_is_not_charged_but_whether_means_are_asked_for_is(make_config):
    one, four, nine = (charged_settings(make_config(selection={"draws": draws})) for draws in (1, 4, 9))
    assert four == nine != one
    assert four != charged_settings(make_config(selection={"draws": 4, "share": 0.1}))


def test_settings_of_a_training_that_does_not_take_place_are_not_charged(make_config):
    plain = charged_settings(make_config(variant="untrained"))
    unmet = (
        {"train": {"epochs": 9.0}},
        {"lora": {"rank": 3}},
        {"update": "alternating"},
        {"selection": {"share": 0.3}},
    )
    for other in unmet:
        assert charged_settings(make_config(variant="untrained", **other)) == plain
    assert charged_settings(make_config(variant="untrained", about="ferries")) != plain
    assert charged_settings(make_config(variant="naive")) != charged_settings(
        make_config(variant="naive", train={"epochs": 9.0})
    )
