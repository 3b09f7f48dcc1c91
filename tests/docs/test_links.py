"""Every link between the pages leads to a file and a heading that are there; each page of results shows a figure."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_of_a_page_leads_somewhere():
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            if not found.exists() or (anchor and anchor not in anchors(found)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_a_page_of_results_opens_with_its_figure_and_is_listed(page):
    opening = page.read_text().split("\n## ")[0]
    assert f"]({page.stem}.svg)" in opening
    assert f"(results/{page.name})" in (ROOT / "docs" / "results.md").read_text()


def test_tables_of_results_have_as_many_cells_in_every_line():
    for page in RESULTS:
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.M):
            assert len({line.count("|") for line in table.splitlines()}) == 1, f"{page.name}: {table.splitlines()[0]}"


def test_the_example_of_a_method_is_the_one_that_is_installed_and_run():
    page = textwrap.dedent((ROOT / "docs/adding-a-method.md").read_text())
    for name in ("method", "flow"):
        code = (ROOT / f"tests/plugin/bag_of_words/{name}.py").read_text()
        assert textwrap.indent(code, "    ") in page, f"{name}.py has changed: bring docs/adding-a-method.md up to date"
