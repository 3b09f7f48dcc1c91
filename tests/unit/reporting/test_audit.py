"""What the page about an audit says of the bounds."""

import pytest

from understudy.auditing.secret_metrics import NO_MODEL
from understudy.evaluation.metrics import Metrics
from understudy.reporting.audit import attack_section
from understudy.reporting.secrets import secrets_section

NAME = "audit.one_run.data."


@pytest.fixture
def metrics():
    figures = {"guesses": 100.0, "right_guesses": 80.0, "auc": 0.8, "tpr_at_fpr_0_001": 0.1, "tpr_at_fpr_0_01": 0.2}
    bounds = {"": 1.9999, "positive_control.": 2.9999, "null_control.": 0.0}
    values = {f"{NAME}{condition}{name}": value for condition in bounds for name, value in figures.items()}
    values |= {f"{NAME}{condition}epsilon_lower_bound": bound for condition, bound in bounds.items()}
    values |= {"audit.one_run.claimed_epsilon": 2.0, "audit.one_run.canaries": 100.0}
    intervals = {name: (0.0, 1.0) for name in values if name.startswith(NAME) and "bound" not in name}
    return Metrics(values=values | {"audit.one_run.confidence_level": 0.95}, intervals=intervals)


def test_no_bound_is_told_that_was_not_proven(metrics):
    section = attack_section(metrics, "data")
    assert "at least 1.99; it promises at most 2" in section.lead[0]
    assert section.lead[1].endswith("at least 2.99.")
    assert [row[1] for row in section.table.rows] == ["1.99", "2.99", "0.00"]


def of_secrets(**rates):
    """A share with its interval for each run."""
    prefixes = {"claim": "", **{name: f"{name}." for name in ("positive_control", "null_control", "left_out")}}
    values = {"audit.secrets.chance": 1 / 64, "audit.secrets.detectable_rate": 0.17}
    intervals = {}
    for run, (rate, interval) in rates.items():
        name = f"audit.secrets.{prefixes[run]}"
        values |= {f"{name}rate": rate, f"{name}guessed": 32.0}
        intervals[f"{name}rate"] = interval
    return Metrics(values=values, intervals=intervals)


CHANCE = (0.03, (0.001, 0.16))


def test_secrets_that_were_guessed_stand_beside_chance_and_the_control():
    rates = {"claim": CHANCE, "positive_control": (0.5, (0.32, 0.68)), "null_control": CHANCE, "left_out": CHANCE}
    (section,) = secrets_section(of_secrets(**rates))
    said = [line.replace("\u202f", " ") for line in section.lead]
    assert said[0] == (
        "Of 32 secrets, the attacker with the model guessed 3.0 % (0.1 % to 16.0 %) right; chance is 1.6 %."
    )
    assert said[1] == "Without noise it is 50.0 % (32.0 % to 68.0 %)."
    assert len(said) == 3
    assert "17.0 %" in said[2]
    assert [row[0] for row in section.table.rows] == [
        "The run",
        "Without noise",
        "No canary",
        "The run, canaries left out",
    ]


def test_a_control_that_is_not_caught_and_one_that_should_not_be_are_called_so():
    found = (0.2, (0.09, 0.36))
    (section,) = secrets_section(of_secrets(claim=CHANCE, positive_control=CHANCE, left_out=found))
    said = " ".join(section.lead)
    assert "guessing nothing in the run says nothing" in said
    assert "Of canaries left out" in said
    assert "another --seed" in said


def test_a_claim_that_was_not_run_has_its_control_told():
    (section,) = secrets_section(of_secrets(positive_control=CHANCE, null_control=CHANCE))
    assert section.lead[0].startswith("Of 32 secrets in the run without noise, it guessed")


def test_a_method_without_a_model_is_called_so_and_an_older_report_has_no_such_section():
    (section,) = secrets_section(Metrics(missing=(NO_MODEL,)))
    assert "releases no language model" in section.missing
    assert secrets_section(Metrics()) == []
