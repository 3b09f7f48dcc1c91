"""Which report lies in a folder, where it is not that of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from understudy.reporting.audit import is_audit
from understudy.reporting.comparison import is_comparison
from understudy.reporting.pages import stored_report

TITLE_OF_EVALUATION: Final = "Evaluation of a synthetic table"


def is_evaluation(directory: Path) -> bool:
    """Whether an evaluation's report lies in a folder."""
    return stored_report(directory).get("title") == TITLE_OF_EVALUATION


def told_of_another_kind(directory: Path) -> str:
    """What to do with a folder that was named as a run's and holds another report; empty where it holds none."""
    if is_comparison(directory):
        return "; this one holds a comparison: name the folder of one of its runs, which lie in it"
    if is_audit(directory):
        return "; this one holds an audit, of which `understudy report` shows the page"
    if is_evaluation(directory):
        return "; this one holds an evaluation, which has no run: `understudy report` shows its page"
    return ""
