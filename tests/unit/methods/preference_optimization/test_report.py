"""Sections of preference optimisation: shown where measured, and saying what was measured."""

from report_pages import Outline

from understudy.evaluation.metrics import Metrics
from understudy.methods.preference_optimization.metric_names import METRIC_NAMES
from understudy.methods.preference_optimization.report import (
    cost_section,
    next_token_section,
    rounds_section,
    sections,
)
from understudy.reporting.report import build_report, rebuild_report
from understudy.reporting.view import MethodSections

VALUES = {
    "utility.next_token.public.accuracy": 0.16,
    "utility.next_token.prompt_only.accuracy": 0.19,
    "utility.next_token.synthetic.accuracy": 0.24,
    "utility.next_token.real.accuracy": 0.36,
    "utility.next_token.synthetic_minus_prompt_only.accuracy": 0.05,
    "utility.next_token.gap_closed": 0.4,
    "utility.next_token.clients": 75.0,
    **{f"rounds.recovery.round_{i}": 0.9 - 0.1 * (i == 2) for i in range(1, 12)},
    **{f"rounds.medoid_distance.round_{i}": 1.2 for i in range(1, 12)},
    **{f"rounds.frechet.round_{i}": 1.5 - 0.1 * i for i in range(1, 12)},
    "rounds.frechet_floor": 0.2,
}
INTERVALS = {
    "utility.next_token.synthetic.accuracy": (0.22, 0.26),
    "utility.next_token.synthetic_minus_prompt_only.accuracy": (0.03, 0.07),
}


def test_the_figures_are_said_in_words():
    metrics = Metrics(values=VALUES, intervals=INTERVALS, declared=METRIC_NAMES)
    tokens, rounds = next_token_section(metrics), rounds_section(metrics)
    assert "24.0" in tokens.lead[0]
    assert "+5.0 points (+3.0 to +7.0)" in tokens.lead[1]
    assert "40" in tokens.lead[2]
    assert "Tested on 75 clients" in tokens.note
    assert "1.400 in round 1 to 0.400 in round 11" in rounds.lead[1]
    # Rounds in the order of their numbers, not of their names.
    assert [row[0] for row in rounds.table.rows] == [str(i) for i in range(1, 12)]
    assert rounds.table.rows[1] == ("2", "0.800", "1.300", "1.200")


def test_what_a_round_costs_a_client_is_shown_in_numbers_and_seconds_with_the_rates_assumed():
    costs = {
        "costs.download.floats": 6912000.0,
        "costs.upload.floats": 18000.0,
        "costs.download.seconds": 4.42368,
        "costs.upload.seconds": 0.0576,
        "costs.download.mbit_per_second": 50.0,
        "costs.upload.mbit_per_second": 10.0,
        "costs.scoring.seconds": 0.125,
    }
    section = cost_section(Metrics(values=costs, declared=METRIC_NAMES))
    received, sent, computed = section.table.rows
    assert received[1:] == ("6,912,000", "4.42", "at an assumed 50 Mbit/s")
    assert sent[1:] == ("18,000", "0.0576", "at an assumed 10 Mbit/s")
    assert computed[2] == "0.125"
    assert "measured" in computed[3]
    assert "6,912,000" in section.lead[0]
    assert cost_section(Metrics()) is None


def test_other_runs_have_no_such_sections(metrics):
    assert sections(metrics, {}) == MethodSections()


def test_too_few_held_out_samples_leave_the_distance_out():
    values = {name: value for name, value in VALUES.items() if "frechet" not in name}
    section = rounds_section(Metrics(values=values, declared=METRIC_NAMES))
    assert section.drawing is None
    assert len(section.lead) == 1
    assert section.table.rows[0] == ("1", "0.900", "", "1.200")


def test_the_report_shows_them_in_the_place_of_a_classifier_s_accuracy(tmp_path):
    metrics = Metrics(values=VALUES, intervals=INTERVALS, declared=METRIC_NAMES)
    files = build_report(
        tmp_path,
        title="Texts",
        metrics=metrics,
        statement={},
        samples=[{"text": "a"}],
        method="preference-optimization",
        sections=sections,
    )
    page = files.html.read_text()
    assert Outline(page).headings[:6] == [
        "Texts", "Next-token accuracy", "Rounds", "Fidelity", "Memorisation", "Length and diversity"
    ]  # fmt: skip
    assert "no labelled real test rows" not in page
    assert "Label fidelity" not in page
    assert rebuild_report(tmp_path, {"preference-optimization": sections}.get).html.read_text() == page
