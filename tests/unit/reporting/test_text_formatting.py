import math

import pytest

from understudy.reporting import text_formatting


def plain(text):
    return text.replace(text_formatting.NARROW_SPACE, " ").replace(text_formatting.MINUS, "-")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3.0, "3"), (0.1234567, "0.1235"), (-0.5, "-0.5"), (1e-5, "1 × 10⁻⁵"), (2.5e12, "2.5 × 10¹²"),
     (12345.0, "12,345"), (math.inf, "∞"), (-math.inf, "-∞"), (math.nan, "not a number")],
)  # fmt: skip
def test_numbers(value, text):
    assert plain(text_formatting.number(value)) == text


def test_shares_and_differences():
    assert plain(text_formatting.percent(0.7084)) == "70.8 %"
    assert plain(text_formatting.percent(0.00021, 2)) == "0.02 %"
    assert plain(text_formatting.points(-0.0321)) == "-3.2 points"
    assert plain(text_formatting.points(0.01, unit="")) == "+1.0"


@pytest.mark.parametrize(
    ("value", "found"),
    [(3, 3.0), ("2.5", 2.5), ("Infinity", math.inf), (None, None), (True, None), ("soon", None), ([1], None)],
)
def test_numbers_of_a_statement(value, found):
    assert text_formatting.as_float(value) == found


def test_guarantee_by_hand():
    # epsilon = ln 3: factor 3, and a guess is right at most (3 + 0.04) / 4 = 76 % of the time.
    first, second = text_formatting.explain_guarantee({"epsilon": math.log(3), "delta": 0.04, "unit": "client"})
    assert "one client with all of its records" in first
    assert "exp(ε) = 3, apart from a slack of δ = 0.04" in first
    assert "at most 76.0 % of the time" in plain(second)


def test_the_guessing_bound_is_rounded_up():
    # (e + 0) / (1 + e) = 0.7310586: rounding to nearest would promise too much.
    assert "73.2 %" in plain(text_formatting.explain_guarantee({"epsilon": 1.0, "delta": 0.0})[1])


def test_the_factor_is_rounded_up_as_in_the_statement():
    # e^8 = 2980.96: no probability changes by more than that, but by more than 2,980 it can.
    assert "exp(ε) = 2,990." in text_formatting.explain_guarantee({"epsilon": 8.0, "delta": 0.0})[0]


def test_a_large_epsilon_is_not_praised():
    sentences = text_formatting.explain_guarantee({"epsilon": 16, "delta": 1e-6, "unit": "example"})
    assert "excludes very little" in sentences[-1]
    assert not any("100" in plain(s) for s in sentences[1:])


@pytest.mark.parametrize("epsilon", [None, math.inf, "inf", math.nan, "?"])
def test_no_finite_epsilon_means_nothing_is_promised(epsilon):
    text = " ".join(text_formatting.explain_guarantee({"epsilon": epsilon, "delta": 1e-5}))
    assert "nothing is promised" in text
    assert "never hand it over" in text


def test_a_verdict_of_none_promises_nothing_whatever_the_epsilon():
    sentences = text_formatting.explain_guarantee(
        {"epsilon": 1.0, "verdict": "none", "promise": "Nothing is promised: a seed."}
    )
    assert sentences[0] == "Nothing is promised: a seed."
    assert "factor" not in " ".join(sentences)


def test_relations_and_accountants():
    assert "blank" in text_formatting.explain_relation({"unit": "example", "relation": "replace_special"})
    assert "one client" in text_formatting.explain_relation({"unit": "client", "relation": "add_or_remove_one"})
    assert text_formatting.explain_relation({}) == ""
    assert "PLD" in text_formatting.explain_accountant({"accountant": "PLD"})
    assert text_formatting.explain_accountant({"accountant": "other"}) == "other"
    assert text_formatting.explain_accountant({}) == "not stated"
