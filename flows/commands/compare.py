"""What `understudy compare` does; imported only when it runs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from understudy.errors import InputError
from understudy.flows.commands.run import choices_said, ended, request_from, say_unread_variables
from understudy.flows.commands.terminal import console, say, show
from understudy.runs.comparisons.request import CompareRequest, compare_request_of, epsilon_text

if TYPE_CHECKING:
    from understudy.runs.comparisons.validated import Comparison


def compare(
    *, methods: str, epsilons: str, seeds: str, options: Mapping[str, Any], dry_run: bool, as_json: bool
) -> None:
    """`understudy compare`."""
    from understudy.settings import prepare_environment

    request = _request(methods, epsilons, seeds, options)
    # Each state of each task is in Prefect's own record; the terminal shows progress bars and what went wrong.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    prepare_environment()
    from understudy.runs.comparisons.report import (
        ComparisonIncomplete,
        complete_comparison,
        report_on_runs,
        shortfall_of,
    )
    from understudy.runs.comparisons.validated import (
        charges_of,
        handed_comparison,
        register_comparison,
        validate_comparison,
    )

    say_unread_variables()
    with choices_said():
        checked = validate_comparison(request)
    comparison = checked.comparison
    for note in comparison.notes:
        say(f"note: {note}")
    if dry_run:
        _show_plan(comparison, as_json=as_json)
        return
    from understudy.reporting.comparison_content import LOOK
    from understudy.runs.earlier_charges import refuse_paid

    for run in comparison.runs:
        refuse_paid(run.paid_before, accepts_new=request.run.accept_new_charge)
    say(_price(comparison))
    for sentence in LOOK:
        say(sentence, style="bold")
    place = Path(request.run.out).expanduser().absolute()
    try:
        if comparison.is_finished:
            missing = {run.cell.name: why for run in comparison.runs if (why := shortfall_of(run.cell))}
            cells = tuple(run.cell for run in comparison.runs)
            complete_comparison(report_on_runs(request, cells, missing, charges_of(comparison)))
        else:
            with handed_comparison(register_comparison(checked)):
                from understudy.flows.compare import compare as flow

                ended(flow, request)
    except ComparisonIncomplete:
        _show_report(place, title="compare: some runs are missing", as_json=as_json)
        raise
    told = "finished before, nothing was computed" if comparison.is_finished else "done"
    _show_report(place, title=f"compare: {told}", as_json=as_json)


def _request(methods: str, epsilons: str, seeds: str, options: Mapping[str, Any]) -> CompareRequest:
    """The request behind the options.

    Raises:
        InputError: when an option is missing or malformed.
    """
    return compare_request_of(
        {
            "methods": _parts(methods, "METHOD", str, "conditional-generation,gradient-matching"),
            "epsilons": _parts(epsilons, "--epsilon", float, "1,8"),
            "seeds": _parts(seeds, "--seeds", int, "0,1,2"),
            "run": request_from(options),
        }
    )


def _parts(text: str, option: str, kind: type, example: str) -> tuple[Any, ...]:
    """The entries of a list with commas."""
    try:
        found = tuple(kind(part.strip()) for part in text.split(","))
        if "" in found:
            raise ValueError
    except ValueError:
        raise InputError(f"{option} {text}: expected a list with commas and no gap, for example {example}") from None
    return found


def _price(comparison: Comparison) -> str:
    """What a comparison charges, in words."""
    from understudy.privacy.shown_cost import cost_in_words

    request, source = comparison.request, comparison.request.run.source
    sizes = {"method": request.methods, "seed": request.seeds, "epsilon": request.epsilons}
    runs = f"{' x '.join(_count(len(of), word) for word, of in sizes.items())} = {_count(len(comparison.runs), 'run')}"
    if not comparison.charges:
        return f"{runs}: charges source {source} nothing more, for each was charged before or adds no noise"
    most = "at most, because of --accept-new-charge" if request.run.accept_new_charge else "in all"
    plan = comparison.runs[0].plan
    cost = cost_in_words(comparison.epsilon, comparison.delta, unit=plan.unit, relation=plan.relation)
    said = [
        f"{runs}: charges source {source} {cost} {most}, the sum of {_count(comparison.charges, 'charge')} "
        f"({_budget(comparison)}); a repeated comparison is not charged again"
    ]
    if comparison.epsilon_pld is not None:
        said.append(
            f"all runs were fixed in advance, so together they cost at most epsilon={_up(comparison.epsilon_pld):g} at "
            "that delta by PLD; the budget is charged with the sum all the same"
        )
    if comparison.takes_budget:
        said.append(f"first use of {source!r}: this total becomes its budget")
    return "; ".join(said)


def _count(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _budget(comparison: Comparison) -> str:
    from understudy.privacy.shown_cost import round_up

    epsilon, delta = (round_up(spent) for spent in comparison.spent)
    budget = comparison.budget
    return f"budget {budget.epsilon:g}, {budget.delta:g}, of which {epsilon:g}, {delta:g} is spent"


def _up(epsilon: float) -> float:
    """Three decimals, never less than `epsilon`."""
    return math.ceil(epsilon * 1e3) / 1e3


def _show_plan(comparison: Comparison, *, as_json: bool) -> None:
    """What a comparison will charge, and what one run of each method needs; public values only."""
    from understudy.methods import registry
    from understudy.privacy.labels import ACCOUNTANT
    from understudy.reporting.pages import plain
    from understudy.tasks.engine.machine import timed

    states = {
        run.cell.name: "finished" if run.is_finished else "charged before" if run.is_charged else "new"
        for run in comparison.runs
    }
    estimates: dict[str, Any] = {}
    for run in comparison.runs:
        if not run.is_finished and run.cell.method not in estimates:
            with timed():
                estimate = registry.get(run.cell.method).preparation.estimate(run.plan.config, run.plan.promise)
            estimates[run.cell.method] = estimate
    pld, plan = comparison.epsilon_pld, comparison.runs[0].plan
    told = {
        "source": comparison.request.run.source,
        "runs": states,
        "unit": plan.unit,
        "relation": plan.relation,
        "accountant": ACCOUNTANT,
        "charges": comparison.charges,
        "epsilon_sum": comparison.epsilon,
        "delta_sum": comparison.delta,
        "epsilon_pld_of_all": None if pld is None else _up(pld),
        "budget": _budget(comparison),
        "each_run": estimates,
    }
    show(plain(told), as_json=as_json, title="compare, dry run: nothing charged")


def _show_report(place: Path, *, title: str, as_json: bool) -> None:
    """The headline figures and where all of them are."""
    from understudy.evaluation.statistics.comparison import headline_of
    from understudy.reporting.comparison import SPREAD, lines_of, read_comparison

    content = read_comparison(place)
    files = {"report": str(place / "report.html"), "figures": str(place / "report.json"), "charged": content.charged}
    if as_json:
        groups = [group.model_dump() | {"epsilon": epsilon_text(group.epsilon)} for group in content.groups]
        found = {"missing": content.missing, "look": content.look, "groups": groups, "metrics": content.metrics}
        show(files | found | {"intervals": content.intervals}, as_json=True)
        return
    show(files, as_json=False, title=title)
    table = Table(
        "run", "mean", "interval", "spread", "seeds", title=headline_of(content.figures), title_justify="left"
    )
    for row in lines_of(content):
        table.add_row(*map(Text, row))
    if table.row_count:
        console.print(table)
        console.print(Text(SPREAD))
