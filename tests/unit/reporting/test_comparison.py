"""The page of a comparison: what it warns of, its drawing and its tables, as a pure function of report.json."""

import json
import math
import stat

import pytest
from report_pages import Outline

from understudy.errors import InputError
from understudy.evaluation.metric_name import MetricName
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.names import describe
from understudy.evaluation.statistics.comparison import MeasuredRun, compared, figures_of, seed_name
from understudy.evaluation.statistics.differences import difference_name
from understudy.reporting.comparison import (
    build_comparison,
    figure_rows,
    headline_drawing,
    is_comparison,
    lines_of,
    read_comparison,
    rebuild_comparison,
    table_of,
)
from understudy.reporting.comparison_content import ComparisonContent, Group
from understudy.reporting.differences import differences_table, pairs_of
from understudy.reporting.text_formatting import MINUS

SYNTHETIC, PROMPT = "utility.synthetic.accuracy", "utility.prompt_only.accuracy"
GROUPS = (
    Group(name="bag-eps1", method="bag", epsilon=1, seeds=(0, 1)),
    Group(name="bag-epsinf", method="bag", epsilon=math.inf, seeds=(0, 1)),
    Group(name="letters-eps1", method="letters", epsilon=1, seeds=(0,), missing=(1,)),
)


@pytest.fixture
def content():
    runs = [
        MeasuredRun(
            group.name,
            seed,
            Metrics(
                values={SYNTHETIC: 0.5 + 0.1 * seed, PROMPT: 0.25, "fidelity.frechet": 0.125},
                intervals={SYNTHETIC: (0.4, 0.8)},
            ),
        )
        for group in GROUPS
        for seed in group.seeds
    ]
    found = compared(runs, missing=["letters-eps1-seed1: no <b>texts</b> came"])
    return ComparisonContent(
        title="Comparison on ward",
        charged="charged: epsilon=3",
        groups=GROUPS,
        figures=figures_of(runs),
        metrics=found.values,
        intervals=found.intervals,
        missing=found.missing,
        declared=found.declared,
    )


def test_the_page_warns_and_names_what_is_missing_and_every_mean(content, tmp_path):
    files = build_comparison(tmp_path, content)
    page = files.html.read_text()
    outline = Outline(page)
    text = " ".join(outline.texts)
    for told in ("internal, not private", "no epsilon covers", "given away the sum", "1 run is missing", "charged: "):
        assert told in text, told
    assert "no <b>texts</b> came" in text, "escaped"
    assert outline.headings[0] == "Comparison on ward"
    assert [row[0] for row in lines_of(content)] == ["bag, epsilon 1", "bag, epsilon ∞", "letters, epsilon 1"]
    bag, _, letters = lines_of(content)
    assert [cell.replace("\u202f", " ") for cell in bag[1:]] == ["55.0 %", "40.0 % to 80.0 %", "7.1 %", "2"]
    assert letters[3:] == ("one seed", "1")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (files.html, files.json)} == {0o600}
    assert "script" not in outline.tags


def test_a_difference_of_shares_is_in_points_and_not_in_per_cent():
    name = "utility.synthetic_minus_prompt_only.accuracy"
    runs = [
        MeasuredRun("bag-eps1", seed, Metrics(values={name: -0.1 * seed}, intervals={name: (-0.3, 0.1)}))
        for seed in (0, 1)
    ]
    found = compared(runs)
    content = ComparisonContent(
        title="Comparison on ward",
        charged="charged: epsilon=3",
        groups=GROUPS[:1],
        figures=figures_of(runs),
        metrics=found.values,
        intervals=found.intervals,
        declared=found.declared,
    )
    table = table_of(content, next(figure for figure in content.figures if figure.pattern == name))
    assert table is not None
    row = tuple(cell.replace("\u2212", "-") for cell in table.rows[0][1:])
    assert row == ("-5.0 points", "-30.0 points to +10.0 points", "7.1 points", "2")


def test_report_json_is_the_whole_report(content, tmp_path):
    files = build_comparison(tmp_path, content)
    before = files.html.read_bytes()
    assert read_comparison(tmp_path) == content
    files.html.unlink()
    assert is_comparison(tmp_path)
    assert rebuild_comparison(tmp_path).html.read_bytes() == before
    told = json.loads(files.json.read_text())
    told["metrics"]["comparison.bag-eps1.utility.synthetic.acuracy"] = 0.5
    files.json.write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"understudy\.comparison/1"):
        rebuild_comparison(tmp_path)
    assert not is_comparison(tmp_path / "other")


def test_the_drawing_tells_every_mean_and_the_baseline_in_words(content):
    drawing = headline_drawing(content)
    said = drawing.alt.replace("\u202f", " ")
    assert "bag at epsilon 1: 55.0 %; bag at epsilon ∞: 55.0 %; letters at epsilon 1: 50.0 %" in said
    assert "prompt-only text: 25.0 %" in said
    assert "real text" not in said, "not measured"
    assert "not to scale" in drawing.svg


def test_differences_are_told_in_points_with_the_seeds_behind_them(content, tmp_path):
    assert "Differences" not in Outline(build_comparison(tmp_path, content).html.read_text()).headings
    # Between two methods at one epsilon, and two epsilons of one method; not between groups that differ in both.
    assert [(one.name, other.name) for one, other in pairs_of(GROUPS)] == [
        ("bag-eps1", "bag-epsinf"),
        ("bag-eps1", "letters-eps1"),
    ]
    name = difference_name("bag-eps1", "bag-epsinf", SYNTHETIC)
    declared = (*content.declared, MetricName(name, "a difference", "share", "context"))
    told = content.model_copy(
        update={
            "metrics": content.metrics | {name: -0.02},
            "intervals": content.intervals | {name: (-0.25, 0.21)},
            "declared": declared,
        }
    )
    (row,) = differences_table(told, describe(SYNTHETIC)).rows
    assert row[0] == "bag, epsilon 1 minus bag, epsilon ∞"
    assert [cell.replace(MINUS, "-") for cell in row[1:]] == ["-2.0 points", "-25.0 points to +21.0 points", "2"]
    # A run that lacks the figure is none of the seeds behind it.
    lacking = seed_name("bag-epsinf", 1, SYNTHETIC)
    fewer = {
        part: {key: value for key, value in getattr(told, part).items() if key != lacking}
        for part in ("metrics", "intervals")
    }
    (row,) = differences_table(told.model_copy(update=fewer), describe(SYNTHETIC)).rows
    assert row[-1] == "1"
    outline = Outline(build_comparison(tmp_path, told).html.read_text())
    assert "Differences" in outline.headings
    assert "nothing of other test rows" in " ".join(outline.texts)


def test_without_a_measured_run_the_page_says_so(content, tmp_path):
    empty = content.model_copy(update={"figures": (), "metrics": {}, "intervals": {}})
    assert headline_drawing(empty) is None
    assert figure_rows(empty) == []
    assert "No run was measured." in build_comparison(tmp_path, empty).html.read_text()
