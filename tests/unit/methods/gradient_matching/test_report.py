"""What the report says and draws of gradient matching."""

import json
import re
from xml.etree import ElementTree

import pytest
from report_pages import ABOUT, LOOKS, Outline

from understudy.evaluation.metrics import Metrics, merge
from understudy.methods.gradient_matching import figures
from understudy.methods.gradient_matching import report as view
from understudy.methods.gradient_matching.metric_names import METRIC_NAMES
from understudy.methods.gradient_matching.report import matching_section, membership_section
from understudy.reporting.report import Content, build_report, rebuild_report
from understudy.reporting.text_formatting import MINUS, NARROW_SPACE
from understudy.reporting.view import MethodSections

METHOD = "gradient-matching"
FIGURES = (
    figures.loss_figure,
    figures.transfer_figure,
    figures.nearest_figure,
    figures.error_figure,
    figures.membership_figure,
)


@pytest.fixture(scope="module")
def sections(matching_metrics):
    return view.sections(matching_metrics, {}).last


@pytest.fixture(scope="module")
def page_of_all(tmp_path_factory, metrics, matching_metrics, statement, samples):
    """A report of gradient matching: every figure there is."""

    warned = {**statement, "warnings": ["signal-to-noise ratio of the target at most 0.3: too little", "beware"]}
    everything = {"metrics": merge(metrics, matching_metrics), "statement": warned, "samples": samples, "about": ABOUT}
    folder = tmp_path_factory.mktemp("matching")
    files = build_report(folder, title="Reviews", **everything, method=METHOD, sections=view.sections)
    return files, files.html.read_text(), json.loads(files.json.read_text())


def plain(text):
    return text.replace(NARROW_SPACE, " ").replace(MINUS, "-").replace("’", "'")


def texts(drawing):
    return [element.text for element in ElementTree.fromstring(drawing.svg).iter("text")]


def without(metrics, *prefixes):
    """The metrics without the names that begin so."""

    def keep(found):
        return {name: value for name, value in found.items() if not name.startswith(prefixes)}

    kept = {field: keep(getattr(metrics, field)) for field in ("values", "intervals", "histograms")}
    return Metrics(**kept, declared=METRIC_NAMES)


def test_there_is_no_section_without_its_figures(metrics):
    assert view.sections(metrics, {}) == MethodSections()
    assert [figure(metrics) for figure in FIGURES] == [None] * 5


def test_the_sections_have_an_order_and_a_finding_each(sections):
    assert [section.key for section in sections] == ["matching", "transfer", "nearest", "gradient-error", "membership"]
    assert all(section.lead and section.drawing and section.note for section in sections)


def test_the_sections_come_after_the_common_ones(page_of_all, sections):
    outline = Outline(page_of_all[1])
    own = [section.title for section in sections]
    first = outline.headings.index(own[0])
    assert outline.headings[first : first + len(own)] == own
    assert outline.headings.index("Label fidelity") < first < outline.headings.index("Synthetic samples")
    assert outline.tags.count("svg") == 10
    assert "Signal-to-noise ratio of the target at most 0.3: too little." in page_of_all[1]


def test_the_page_is_built_again_from_the_json(page_of_all, tmp_path, metrics, matching_metrics):
    files, page, data = page_of_all
    assert set(data["histograms"]) == {"matching.loss", "memorization.nearest"}
    assert Content.model_validate(data).measured() == merge(metrics, matching_metrics)
    (tmp_path / "report.json").write_bytes(files.json.read_bytes())
    assert rebuild_report(tmp_path, {METHOD: view.sections}.get).html.read_text() == page


@pytest.mark.parametrize("look", LOOKS)
def test_a_browser_shows_everything(page_of_all, tmp_path, browse, look):
    LOOKS[look](page_of_all[1], tmp_path, browse, figures=10)


@pytest.mark.parametrize(
    ("prefix", "section"),
    [("matching.loss", view.matching_section), ("utility.transfer", view.transfer_section),
     ("memorization.nearest", view.nearest_section), ("matching.gradient_error.step", view.error_section),
     ("audit.mia.null_control", view.membership_section)],
)  # fmt: skip
def test_a_section_is_left_out_when_its_figures_are_missing(matching_metrics, prefix, section):
    assert section(without(matching_metrics, prefix)) is None


def test_the_distances_say_how_many_texts_they_are_of(matching_metrics):
    counts = {"memorization.nearest_rows.synthetic": 123.0, "memorization.nearest_rows.holdout": 45.0}
    values = matching_metrics.values | counts
    lead = " ".join(view.nearest_section(matching_metrics.model_copy(update={"values": values})).lead)
    assert "123 synthetic texts and 45 rows never seen" in lead


def test_figures_differ_and_their_alternatives_carry_numbers(sections):
    drawings = [section.drawing for section in sections]
    assert len({drawing.key for drawing in drawings}) == 5
    for drawing, said in zip(drawings, ("kept median 0.138", "tiny-gpt2: Prompt-only 49.0 %", "synthetic median 1.111",
                                        "synthetic: 0.70 after 0 steps, 1.20 after 50 steps", "Synthetic -0.05"),
                             strict=True):  # fmt: skip
        assert said in plain(drawing.alt)


def stairs(drawing, style):
    """Heights above the lowest point of the outline that is drawn in a style."""
    for path in ElementTree.fromstring(drawing.svg).iter("path"):
        if style in path.get("style", "") and path.get("clip-path"):
            numbers = [float(x) for x in path.get("d").replace("M", " ").replace("L", " ").replace("z", " ").split()]
            return [max(numbers[1::2]) - y for y in numbers[1::2]]
    pytest.fail(f"no outline with the style {style!r}")


def test_histograms_are_as_high_as_their_shares(matching_metrics):
    drawing = figures.loss_figure(matching_metrics)
    shares = matching_metrics.histograms["matching.loss"].shares
    kept, other = stairs(drawing, "fill: var(--synthetic)"), stairs(drawing, "stroke: var(--prompt)")
    assert max(kept) / max(other) == pytest.approx(max(shares["kept"]) / max(shares["prompt_only"]), rel=1e-3)
    assert {"kept", "dropped", "prompt-only"} <= set(texts(drawing))
    lines = [path.get("style", "") for path in ElementTree.fromstring(drawing.svg).iter("path")]
    assert any("stroke: var(--muted)" in style and "stroke-dasharray" in style for style in lines), "dropped"


def test_panels_of_the_transfer_share_one_scale(matching_metrics):
    drawing = figures.transfer_figure(matching_metrics)
    shown = texts(drawing)
    assert {plain(t) for t in shown} >= {"49.0 %", "77.0 %", "tiny-gpt2"}
    ticks = [t for t in shown if t.endswith(f"{NARROW_SPACE}%") and "." not in t]
    assert len(ticks) % 2 == 0
    assert ticks[: len(ticks) // 2] == ticks[len(ticks) // 2 :]
    assert ("a-very-long-name-" * 3)[:39] + "…" in shown


def test_the_lead_names_loss_ratio_and_the_statements_warning(matching_metrics):
    warning = "signal-to-noise ratio of the target at most 0.68: the output depends on the noise"
    section = matching_section(matching_metrics, [warning, "something else"])
    lead = plain(" ".join(section.lead))
    assert re.search(r"kept texts is 0\.138.*prompt-only text is 0\.186", lead)
    assert "at most 23" in lead
    assert lead.endswith("Signal-to-noise ratio of the target at most 0.68: the output depends on the noise.")
    rows = dict(section.table.rows)
    assert (rows["Matched"], rows["Kept"], rows["Asked for but not reached"]) == ("80", "26", "14")
    assert rows["Dropped: the public model did not confirm the label"] == "39"
    assert not any("empty" in name for name in rows), "a step that was not taken is not listed"


@pytest.mark.parametrize(("low", "guesses"), [(0.24, True), (0.26, False)])
def test_a_label_check_that_may_as_well_guess_is_named(matching_metrics, low, guesses):
    name = "matching.label_check.agreement"
    assert not any("label check" in text for text in matching_section(matching_metrics).lead)
    values = matching_metrics.values | {name: 0.31, "matching.label_check.chance": 0.25}
    found = matching_metrics.model_copy(update={"values": values, "intervals": {name: (low, 0.43)}})
    lead = plain(" ".join(matching_section(found).lead))
    assert f"31.0 % ({100 * low:.1f} % to 43.0 %)" in lead
    assert "25.0 %" in lead
    assert ("filter.label_check=false" in lead) == guesses


def test_no_noise_and_nothing_kept_are_said(matching_metrics):
    values = {"matching.drawn": 4.0, "matching.loss.dropped_median": 0.5}
    found = Metrics(values=values, histograms=matching_metrics.histograms, declared=METRIC_NAMES)
    kept, noise = matching_section(found).lead
    assert "kept" in kept
    assert "noise" in noise


def test_an_attack_that_misses_its_control_says_nothing(matching_metrics):
    caught = plain(" ".join(membership_section(matching_metrics).lead))
    assert "-0.05 (-0.28 to +0.20)" in caught
    assert "It catches the positive control: +0.38 (+0.15 to +0.62)" in caught
    assert "epsilon below 0.48" in caught
    weak = dict(matching_metrics.intervals) | {"audit.mia.positive_control.advantage": (-0.01, 0.7)}
    missed = matching_metrics.model_copy(update={"intervals": weak})
    lead = plain(" ".join(membership_section(missed).lead))
    assert "positive control" in lead
    assert "It catches" not in lead


@pytest.mark.parametrize(
    "interval",
    [{"audit.mia.null_control.advantage": (0.25, 0.55)}, {"audit.mia.null_control.auc": (0.0, 0.12)}],
    ids=["members look more like it", "members look less like it"],
)
def test_a_null_control_that_is_told_apart_confounds_the_attack(matching_metrics, interval):
    assert "null control" not in plain(" ".join(membership_section(matching_metrics).lead))
    apart = dict(matching_metrics.intervals) | interval
    confounded = matching_metrics.model_copy(update={"intervals": apart})
    assert "none of these figures says anything about membership" in plain(
        " ".join(membership_section(confounded).lead)
    )


def test_the_gradient_errors_are_ordered_by_steps_and_the_last_ones_said(matching_metrics, sections):
    values = matching_metrics.values | {"matching.gradient_error.step_1000": 0.9}
    line = figures.error_line(Metrics(values=values, declared=METRIC_NAMES), "")
    assert line == [(0, 0.7), (50, 1.2), (100, 1.0), (1000, 0.9)]
    assert re.search(r"100 steps.*synthetic text is 1\.00.*prompt-only text 0\.37", sections[3].lead[0])


def test_the_gradient_error_of_other_real_rows_says_how_many_they_are(matching_metrics):
    values = matching_metrics.values | {"matching.gradient_error.real_rows": 16.0}
    counted = Metrics(values=values, declared=METRIC_NAMES)
    assert "of 16 other real rows 0.31" in view.error_section(counted).lead[0]
    assert "of other real rows 0.31" in view.error_section(matching_metrics).lead[0]


def test_a_target_model_that_could_not_be_used_is_named(matching_metrics):
    reason = "accuracy of the target model big: not found"
    found = matching_metrics.model_copy(update={"missing": (reason, "MAUVE: too few rows")})
    lead = view.transfer_section(found).lead
    assert lead[-1] == f"Not measured: {reason}."
    assert len(lead) == 3
