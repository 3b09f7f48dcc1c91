"""Names guessed from a model's loss: one that remembers is caught, one that never saw the text guesses by chance."""

import numpy as np
import pytest

from understudy.auditing.reconstruction import clopper_pearson, guessed, least_rate, plant_names, reconstruct

NAMES = [f"Ann Smith{i}" for i in range(80)]
TEMPLATES = [f"message {i} of {{name}} about a cough" for i in range(200)]


@pytest.fixture
def planted():
    return plant_names(TEMPLATES, NAMES, seed=3)


def test_each_text_has_one_of_its_own_candidates(planted):
    assert all(len(set(one.candidates)) == 64 for one in planted)
    assert all(one.candidates[one.place] in one.text for one in planted)
    assert len({one.place for one in planted}) > 50
    assert planted == plant_names(TEMPLATES, NAMES, seed=3)
    assert "Smith" not in repr(planted[0])


def test_a_model_that_remembers_its_texts_names_all(planted):
    seen = {one.text for one in planted}
    found = reconstruct(planted, lambda texts: np.array([0.0 if text in seen else 1.0 for text in texts]))
    assert found.rate == 1.0
    assert found.interval[0] > 0.98


def test_a_model_with_a_liking_for_names_and_one_without_any_guess_by_chance(planted):
    """The first likes some names, whatever the text: it is right as often as the draw falls on them."""
    liked = reconstruct(planted, lambda texts: np.array([sum(map(ord, text)) % 97 for text in texts], dtype=float))
    assert liked.interval[0] < liked.chance < liked.interval[1]
    even = reconstruct(planted, lambda texts: np.zeros(len(texts)))
    assert even.rate == pytest.approx(1 / 64)


def test_guesses_by_hand():
    losses = np.array([[3.0, 1.0, 2.0], [0.5, 0.5, 0.9], [1.0, 1.0, 1.0], [0.0, 2.0, 4.0]])
    found = guessed(losses, [1, 0, 2, 1])
    assert found.hits == pytest.approx(1 + 1 / 2 + 1 / 3)
    assert (found.texts, found.chance) == (4, pytest.approx(1 / 3))
    assert found.interval == clopper_pearson(2, 4)


def test_the_least_rate_is_told_in_four_of_five_attacks():
    from scipy.stats import binom

    for texts in (15, 50, 400):
        rate = least_rate(texts, chance=1 / 64)
        told = [hits for hits in range(texts + 1) if clopper_pearson(hits, texts)[0] > 1 / 64]
        assert binom.sf(told[0] - 1, texts, rate) == pytest.approx(0.8)
    assert least_rate(1, chance=1 / 64) < 1
    assert least_rate(1, chance=0.5) == 1


def test_the_interval_is_exact():
    assert clopper_pearson(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)
    assert clopper_pearson(10, 10)[1] == 1.0


def test_too_few_names_and_texts_without_a_place_are_refused():
    with pytest.raises(ValueError, match="found 10 names"):
        plant_names(TEMPLATES, NAMES[:10], seed=0)
    with pytest.raises(ValueError, match="place for a name"):
        plant_names(["no place"], NAMES, seed=0)
