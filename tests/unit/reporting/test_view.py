import re

import pytest

from understudy.evaluation.metrics import Metrics
from understudy.reporting import view
from understudy.reporting.text_formatting import MINUS, NARROW_SPACE

SECTIONS = (view.utility_section, view.fidelity_section, view.memorization_section, view.diversity_section,
            lambda m: view.label_section(m, ("negative", "positive")))  # fmt: skip


def plain(text):
    return text.replace(NARROW_SPACE, " ").replace(MINUS, "-")


@pytest.mark.parametrize("section", SECTIONS)
def test_an_empty_section_says_why_and_draws_nothing(section):
    found = section(Metrics())
    assert found.drawing is None
    assert found.missing
    assert found.table is None


@pytest.mark.parametrize("section", SECTIONS)
def test_a_full_section_has_a_finding_and_a_figure(section, metrics):
    found = section(metrics)
    assert found.lead
    assert found.drawing is not None
    assert found.missing == ""


def test_one_word_in_common_is_one_word_and_both_sets_of_rows_are_told_apart():
    """Of all private rows the run may be longer than in the table, which reads as many as were never seen."""
    longest = {"all_private": 2.0, "synthetic": 1.0, "holdout": 1.0}
    values = {f"memorization.longest_match.{whose}": words for whose, words in longest.items()}
    section = view.memorization_section(Metrics(values=values))
    assert "any private row has 2 words." in section.lead[0]
    assert section.table.rows == (("Longest run", "1 word", "1 word"),)
    assert "equally many rows" in section.note


def test_the_evaluations_own_reason_is_given():
    found = view.memorization_section(Metrics(missing=("n-gram overlap: no holdout rows were given",)))
    assert "no holdout rows were given" in found.missing


def test_utility_says_its_numbers(metrics):
    section = view.utility_section(metrics)
    lead = plain(" ".join(section.lead))
    assert re.search(r"70\.8 %.*real training text gives 76\.4 %", lead)
    assert "-5.6 points (-8.6 to -2.6)" in lead
    assert [plain(c) for c in section.table.columns] == ["Trained on", "Accuracy", "95 % interval"]
    assert ("Synthetic, probe", "70.8 %", "67.8 to 73.8") in [tuple(map(plain, row)) for row in section.table.rows]


def test_mean_recall_is_said_where_a_common_label_makes_accuracy_another_story(metrics):
    figures = {"utility.synthetic.mean_recall": 0.352, "utility.prompt_only.mean_recall": 0.31}
    accuracies = {"utility.synthetic.accuracy": 0.463, "utility.prompt_only.accuracy": 0.305}
    ranges = metrics.intervals | {"utility.synthetic.mean_recall": (0.3, 0.4)}
    skewed = metrics.model_copy(update={"values": metrics.values | figures | accuracies, "intervals": ranges})
    assert "prompt-only 31.0 %, synthetic 35.2 % (30.0 to 40.0)" in plain(" ".join(view.utility_section(skewed).lead))
    even = metrics.model_copy(update={"values": metrics.values | accuracies | {"utility.synthetic.mean_recall": 0.46}})
    assert "mean recall" not in " ".join(view.utility_section(even).lead)


def test_fidelity_says_when_mauve_is_of_subsamples(metrics):
    values = metrics.values | {"fidelity.rows": 32_000.0}
    for drawn, said in ((2000.0, True), (32_000.0, False)):
        found = view.fidelity_section(metrics.model_copy(update={"values": values | {"fidelity.mauve_rows": drawn}}))
        assert ("subsamples of 2,000 rows per set" in plain(found.note)) == said


def test_memorization_puts_both_numbers_side_by_side(metrics):
    section = view.memorization_section(metrics)
    rows = [tuple(map(plain, row)) for row in section.table.rows]
    assert ("5-grams", "2.10 %", "1.92 %") in rows
    assert ("Longest run", "8 words", "7 words") in rows
    assert any(text.startswith("None ") for text in section.lead)
    assert "not a proof of privacy" in section.note


def test_what_single_rows_hold_is_said_beside_rows_never_seen():
    values = {
        "memorization.lone_words.synthetic": 0.125,
        "memorization.lone_words.holdout": 0.12,
        "memorization.lone_words.synthetic_minus_holdout": 0.005,
        "memorization.lone_identifiers_held.synthetic": 40.0,
        "memorization.identifiers.number.private": 40.0,
        "memorization.identifiers.number.replayed": 3.0,
        "memorization.identifiers.number.replayed_alone": 2.0,
    }
    between = {"memorization.lone_words.synthetic_minus_holdout": (-0.01, 0.02)}
    section = view.memorization_section(Metrics(values=values, intervals=between))
    lead = plain(" ".join(section.lead))
    assert "12.50 % stand in the synthetic text too. So do 12.00 %" in lead
    assert "+0.5 points (-1.0 to +2.0)" in lead
    assert "3 of 40 numbers of at least six digits" in lead
    assert "Of these 3, 2 stand in one private row alone" in lead
    assert [plain(cell) for cell in section.table.rows[0]] == ["Words of one row alone", "12.50 %", "12.00 %"]
    assert "are looked for in all rows" in section.note


def test_a_note_of_n_grams_alone_says_nothing_of_single_rows(metrics):
    assert "are looked for in all rows" not in view.memorization_section(metrics).note


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"memorization.lone_identifiers_held.synthetic": 0.0}, "hold none of these: e-mail addresses"),
        ({f"memorization.identifiers.web.{part}": count for part, count in
          (("private", 9.0), ("replayed", 0.0), ("replayed_alone", 0.0))}, "0 of 9 web addresses."),
    ],
)  # fmt: skip
def test_no_identifier_is_said_too(values, said):
    lead = " ".join(view.memorization_section(Metrics(values=values)).lead)
    assert said in lead
    assert "Of these" not in lead


def test_copied_rows_are_said_in_the_lead():
    values = {"memorization.exact_duplicates.all_private": 0.125, "memorization.longest_match.all_private": 30.0}
    lead = plain(" ".join(view.memorization_section(Metrics(values=values)).lead))
    assert "12.50 %" in lead
    assert "30 words" in lead


def test_all_figures_lists_every_value_with_its_meaning(metrics):
    table = view.all_figures(metrics)
    assert [row[0] for row in table.rows] == sorted(metrics.values)
    assert all(row[3] for row in table.rows)
