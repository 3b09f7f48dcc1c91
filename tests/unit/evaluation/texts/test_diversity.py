import numpy as np
import pytest

from understudy.evaluation.texts import diversity


def test_distinct_n_by_hand():
    texts = ["a b a b", "b a"]  # 1-grams a,b of 6; 2-grams ab, ba of ab, ba, ab, ba
    assert diversity.distinct_n(texts, 1) == pytest.approx(2 / 6)
    assert diversity.distinct_n(texts, 2) == pytest.approx(2 / 4)
    assert diversity.distinct_n(texts, 4) == 1.0
    assert diversity.distinct_n(texts, 5) == 0.0


def test_ngrams_do_not_cross_texts():
    assert diversity.distinct_n(["a", "b", "a", "b"], 2) == 0.0


def test_duplicates_ignore_case_and_spacing():
    assert diversity.duplicate_share(["So good", "so  GOOD", "bad", "so good"]) == 0.5
    assert diversity.duplicate_share(["a", "b"]) == 0.0
    assert diversity.duplicate_share([]) == 0.0


def test_length_quantiles_by_hand():
    texts = [" ".join(["w"] * n) for n in range(1, 102)]  # 1..101 words
    assert diversity.length_quantiles(texts) == {0.05: 6, 0.25: 26, 0.5: 51, 0.75: 76, 0.95: 96}


def test_length_quantiles_need_a_text():
    with pytest.raises(ValueError, match="found none"):
        diversity.length_quantiles([])


def test_histogram_counts_every_text_and_the_long_ones_last():
    short = [" ".join(["w"] * n) for n in (0, 1, 5, 9)] * 50
    histogram = diversity.length_histogram({"synthetic": [*short, "w " * 1000], "real": short, "none": []}, bins=5)
    assert set(histogram.shares) == {"synthetic", "real"}
    for shares in histogram.shares.values():
        assert len(shares) == len(histogram.edges) - 1
        assert sum(shares) == pytest.approx(1.0)
    assert histogram.edges[-1] < 100
    assert histogram.shares["synthetic"][-1] >= 1 / 201
    assert np.all(np.diff(histogram.edges) == np.diff(histogram.edges)[0])


def test_histogram_bins_by_hand():
    # 99 % quantile of 0, 1, 2, 3 words is 2.97, so bins of one word up to 4.
    texts = [" ".join(["w"] * n) for n in range(4)]
    histogram = diversity.length_histogram({"synthetic": texts}, bins=4)
    assert histogram.edges == (0, 1, 2, 3, 4)
    assert histogram.shares["synthetic"] == (0.25, 0.25, 0.25, 0.25)


def test_histogram_needs_a_text():
    with pytest.raises(ValueError, match="found none"):
        diversity.length_histogram({"synthetic": []})
