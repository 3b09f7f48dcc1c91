"""What a run tells in a line each: the charge that pays for it, what that promises, and where the results lie.

Prefect's page of the flow run and MLflow's page of the run show it, so nothing here is private.
"""

from __future__ import annotations

from prefect import get_run_logger

from understudy.privacy.shown_cost import cost_in_words
from understudy.runs.exported import Exported
from understudy.tasks.charge_receipt import ChargeReceipt
from understudy.tasks.engine.run_record import NOTE
from understudy.tasks.engine.tracking import add_to_parent


def charge_in_words(receipt: ChargeReceipt) -> str:
    """Which charge pays for a run, and what it promises, in a line."""
    return f"charge {receipt.charge_id} of source {receipt.source!r} pays for this run: {promise_in_words(receipt)}"


def promise_in_words(receipt: ChargeReceipt) -> str:
    """What a charge promises, in a line."""
    if not receipt.label.guarantees:
        return "nothing is promised, and nothing of the budget is spent"
    promised = receipt.label.guarantees[0]
    return cost_in_words(
        promised.epsilon,
        promised.delta,
        unit=promised.unit,
        relation=promised.relation,
        accountant=promised.accountant,
    )


def where_in_words(result: Exported) -> str:
    """Where the results of a run lie, in a line."""
    exported = "nothing was exported, for what was made is as private as the rows"
    if result.export is not None:
        exported = f"exported to {result.export}"
    return f"{exported}; {report_in_words(result.report)}"


def report_in_words(report: str) -> str:
    """Where a report lies, which nobody may hand over."""
    return f"the report, which is internal: {report}"


def tell_of_report(tracked: str, report: str) -> None:
    """Say where a report lies in the log of the flow run and in the description of its MLflow run.

    Args:
        tracked: id of the MLflow run.
        report: path of the page.
    """
    words = report_in_words(report)
    get_run_logger().info(words)
    add_to_parent(tracked, tags={NOTE: words}, metrics={})
