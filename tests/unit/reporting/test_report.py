import html
import json
import math
import os
import re
import shutil
import stat

import pytest
from full_disk import files_of_at_most
from report_pages import ABOUT, LOOKS, Outline

from understudy.errors import InputError
from understudy.evaluation.metrics import Metrics
from understudy.reporting.budget import BudgetUse
from understudy.reporting.drawing import draw
from understudy.reporting.report import (
    About,
    build_report,
    choose_samples,
    rebuild_report,
)
from understudy.reporting.text_formatting import NARROW_SPACE, headline, statement_rows

NO_METHOD = {}.get
EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&"


@pytest.fixture(scope="module")
def report(tmp_path_factory, metrics, statement, samples):
    files = build_report(
        tmp_path_factory.mktemp("internal"),
        title="Reviews",
        metrics=metrics,
        statement=statement,
        samples=samples,
        about=ABOUT,
    )
    return files, files.html.read_text(), json.loads(files.json.read_text())


def test_sections_come_in_order(report):
    assert Outline(report[1]).headings == [
        "Reviews", "Utility", "Fidelity", "Memorisation", "Length and diversity", "Label fidelity", "Synthetic samples",
        "Privacy statement", "Budget of the source", "Passing an audit does not prove privacy", "Everything measured",
    ]  # fmt: skip


def test_a_report_without_histograms_is_still_read(report, tmp_path):
    older = {key: value for key, value in report[2].items() if key != "histograms"}
    (tmp_path / "report.json").write_text(json.dumps(older))
    assert rebuild_report(tmp_path, NO_METHOD).html.read_text() == report[1]


def test_the_page_is_marked_internal_first_and_says_what_was_promised(report):
    text = " ".join(" ".join(Outline(report[1]).texts).replace(NARROW_SPACE, " ").split())
    assert text.strip().removeprefix("Reviews").strip().startswith("internal, not private")
    for said in ("Epsilon (ε) 3", "1.2 × 10⁻⁵", "one record of “reviews”", "replace by null", "PLD", "at most 95.3 %",
                 "16 of 40: the first of each label in turn", "Spent before 1.5", "This run 3",
                 "Left 3.5"):  # fmt: skip
        assert said in text, said


def test_the_page_needs_nothing_from_outside(report):
    page = report[1]
    outline = Outline(page)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(outline.tags)
    fetching = {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}
    assert all(value.startswith("#") for _, name, value in outline.attributes if name in fetching)
    assert not any(name.startswith("on") for _, name, _ in outline.attributes)
    assert "default-src 'none'" in page
    assert not re.search(r"@import|https?://|url\((?!#)", page)


def test_five_figures_are_inside_with_alternatives(report):
    outline = Outline(report[1])
    assert outline.tags.count("svg") == 5
    ids = [value for _, name, value in outline.attributes if name == "id"]
    assert len(ids) == len(set(ids)), "an id occurs twice"
    spoken = [value for tag, name, value in outline.attributes if tag == "svg" and name == "aria-labelledby"]
    assert len(spoken) == 5
    assert all(name in ids for value in spoken for name in value.split())


def test_json_has_the_stable_names_and_the_statement(report, metrics, statement):
    data = report[2]
    assert data["format"] == "understudy.report/1"
    assert data["marker"] == "internal, not private"
    assert data["metrics"] == metrics.values
    assert data["metrics"]["memorization.ngram_5.holdout"] == 0.0192
    assert data["intervals"]["utility.synthetic.accuracy"] == pytest.approx([0.678, 0.738])
    assert data["statement"] == statement
    assert len(data["samples"]) == 16
    assert data["budget"]["epsilon_before"] == 1.5


def test_the_same_input_gives_the_same_bytes(report, tmp_path, metrics, statement, samples):
    again = build_report(tmp_path, title="Reviews", metrics=metrics, statement=statement, samples=samples, about=ABOUT)
    assert again.html.read_bytes() == report[0].html.read_bytes()
    assert again.json.read_bytes() == report[0].json.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == ["report.html", "report.json"]


def test_the_page_is_a_function_of_the_json(report, tmp_path):
    (tmp_path / "report.json").write_bytes(report[0].json.read_bytes())
    assert rebuild_report(tmp_path, NO_METHOD).html.read_text() == report[1]


@pytest.mark.parametrize("content", [None, "", "{}", '{"title": "x", "metrics": {"fidelity.mauve": "?"}}', "[]",
                                     '{"title": "x", "intervals": {"fidelity.mauve": [0, 1]}}'])  # fmt: skip
def test_only_a_report_can_be_rebuilt(tmp_path, content):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(InputError, match=r"report\.json: "):
        rebuild_report(tmp_path, NO_METHOD)
    assert not (tmp_path / "report.html").exists()


def test_where_no_report_is_it_is_said_what_may_have_removed_it(tmp_path):
    with pytest.raises(InputError, match=r"internal/report\.json: .*found none.*--out.*understudy purge") as refused:
        rebuild_report(tmp_path / "internal", NO_METHOD)
    assert "No such file" not in str(refused.value)


def test_a_figure_that_was_tampered_with_is_refused(tmp_path):
    extra = draw("extra", title="T", alt="A", height=100, paint=lambda f: f.subplots().plot([1, 2]))
    files = build_report(tmp_path, title="x", metrics=Metrics(), statement={}, figures=[extra])
    before = files.html.read_text()
    assert rebuild_report(tmp_path, NO_METHOD).html.read_text() == before
    data = json.loads(files.json.read_text())
    data["figures"][0]["svg"] = data["figures"][0]["svg"].replace("</svg>", "<script>alert(1)</script></svg>")
    files.json.write_text(json.dumps(data))
    with pytest.raises(InputError, match="script"):
        rebuild_report(tmp_path, NO_METHOD)


def test_untrusted_text_stays_text(tmp_path, metrics):
    values = {
        "utility.synthetic.accuracy": 0.5,
        "label_fidelity.synthetic": 0.5,
        "label_fidelity.synthetic.label_0": 0.5,
    }
    files = build_report(
        tmp_path,
        title=EVIL,
        metrics=Metrics(values=values, missing=(EVIL,)),
        statement={"epsilon": 1.0, "unit": EVIL, "source": EVIL, EVIL: EVIL, "nested": [{EVIL: [EVIL]}]},
        samples=[{"label": EVIL, "text": EVIL}, {EVIL: EVIL}, {"text": "a\x00b\ud800c"}],
        about=About(made=EVIL, label_names=(EVIL,), created=EVIL, facts={EVIL: EVIL}),
    )
    outline = Outline(files.html.read_text())
    assert not {"script", "img"} & set(outline.tags)
    assert sum(EVIL in text for text in outline.texts) >= 8
    assert "a\ufffdb?c" in files.html.read_text()
    assert json.loads(files.json.read_text())["title"] == EVIL


def test_an_empty_report_says_what_is_missing_everywhere(tmp_path):
    files = build_report(tmp_path, title="Empty", metrics=Metrics(), statement={})
    page = files.html.read_text()
    outline = Outline(page)
    assert "svg" not in outline.tags
    assert page.count('class="absent"') >= 8
    text = " ".join(outline.texts)
    for said in ("Accuracy was not measured", "No synthetic text was given", "No privacy statement came with this run",
                 "budget was not given", "No figure was measured", "nothing is promised"):  # fmt: skip
        assert said in text, said


def test_infinite_epsilon_is_said_and_is_valid_json(tmp_path):
    files = build_report(
        tmp_path, title="x", metrics=Metrics(), statement={"epsilon": math.inf, "budget": [math.inf, None]}
    )
    assert "never hand it over" in files.html.read_text()
    data = json.loads(files.json.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data["statement"]["epsilon"] == "inf"


def test_what_limits_a_promise_stands_beside_it(statement, tmp_path):
    said = "the ledger lost entries <once>"
    limited = statement | {"warnings": [said]}
    page = build_report(tmp_path, title="x", metrics=Metrics(), statement=limited).html.read_text()
    card = page[: page.index("<section")]
    assert "<strong>Note:</strong> the ledger lost entries &lt;once&gt;" in card


def test_a_run_without_promise_shows_no_epsilon(make_statement, tmp_path):
    statement = make_statement(math.inf)
    assert headline(statement)["epsilon"] == "none"
    page = build_report(tmp_path, title="x", metrics=Metrics(), statement=statement).html.read_text()
    assert "no noise was added" in page
    assert "never hand it over" in page


def test_further_figures_and_a_given_budget_are_shown(tmp_path, statement):
    extra = draw("extra", title="Signal to noise", alt="rises", height=100, paint=lambda f: f.subplots().plot([1, 2]))
    budget = BudgetUse(epsilon=100, delta=1e-3, epsilon_before=10, delta_before=0, epsilon_run=5, delta_run=0)
    page = build_report(
        tmp_path, title="x", metrics=Metrics(), statement=statement, figures=[extra], budget=budget
    ).html.read_text()
    assert "Signal to noise" in page
    assert 'class="before" style="width: 10.0%"' in page


def test_instruction_rows_show_their_parts(tmp_path):
    page = build_report(
        tmp_path, title="x", metrics=Metrics(), statement={}, samples=[{"instruction": "Do it", "response": " "}]
    ).html.read_text()
    assert "<h3>Instruction</h3>" in page
    assert "(an empty text)" in page
    assert "1 of 1: the first, not picked by hand." in page, "there is no label to take turns"


def test_samples_take_turns_and_keep_their_order():
    rows = [{"label": "a", "text": str(i)} for i in range(9)] + [{"label": "b", "text": str(i)} for i in range(9, 12)]
    assert [row["text"] for row in choose_samples(rows, most=8)] == ["0", "9", "1", "10", "2", "11", "3", "4"]
    assert choose_samples([]) == []


def test_headline_never_rounds_the_guarantee_down():
    assert headline({"epsilon": 3.00049, "delta": 1.00001e-5})["epsilon"] == "3.001"


def test_statement_rows_keep_their_order_and_say_what_is_empty(statement):
    rows = statement_rows(statement)
    assert [key for key, _ in rows][:3] == ["Epsilon", "Delta", "Unit"]
    assert dict(rows)["Epsilon without amplification"] == "not stated"
    assert dict(rows)["Mechanisms"][0]["L2 clip norm"] == "0.1"
    assert dict(rows)["Audits"] == []


def test_a_long_entry_of_the_statement_is_folded_not_lost(report, statement):
    event = statement["this_run"]["event"]
    folded = (
        f"<details><summary>{len(event)} characters</summary>{html.escape(event).replace('&quot;', '&#34;')}</details>"
    )
    assert len(event) > 400
    assert folded in report[1]


def test_an_older_report_is_replaced(tmp_path):
    for title in ("old", "new"):
        files = build_report(tmp_path / "deep" / "internal", title=title, metrics=Metrics(), statement={})
    assert json.loads(files.json.read_text())["title"] == "new"


@pytest.mark.parametrize("look", LOOKS)
def test_a_browser_shows_everything(report, tmp_path, browse, look):
    LOOKS[look](report[1], tmp_path, browse, figures=5)


def test_a_report_is_closed_to_other_users_from_its_first_byte(tmp_path, monkeypatch):
    replaced = Replaced()
    monkeypatch.setattr(os, "replace", replaced)
    empty = {"title": "t", "metrics": Metrics(), "statement": {}}
    files = build_report(tmp_path / "new" / "internal", **empty)
    assert replaced.modes == {"report.json": 0o600, "report.html": 0o600}
    assert stat.S_IMODE((tmp_path / "new" / "internal").stat().st_mode) == 0o700
    files.html.chmod(0o644)
    rebuild_report(tmp_path / "new" / "internal", NO_METHOD)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (files.html, files.json)} == {0o600}


class Replaced:
    """`os.replace` that remembers with what permissions each file was put in its place."""

    def __init__(self):
        self.modes, self._replace = {}, os.replace

    def __call__(self, source, place):
        self.modes[os.path.basename(place)] = stat.S_IMODE(os.stat(source).st_mode)
        self._replace(source, place)


def test_a_full_disk_is_told_with_the_page_and_leaves_the_old_one(report, tmp_path):
    page = tmp_path / "report.html"
    page.write_text("old")
    shutil.copy(report[0].json, tmp_path)
    with files_of_at_most(1000), pytest.raises(OSError, match=f"File too large: '{page}'"):
        rebuild_report(tmp_path, NO_METHOD)
    assert page.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
