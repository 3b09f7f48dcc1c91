"""What `understudy run` does, and what every command shares that makes runs."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from understudy.errors import InputError
from understudy.flows.commands.terminal import say, show
from understudy.flows.interruption import Interrupted, signals_unwind
from understudy.lazy import load
from understudy.runs.request import RunRequest, parse_budget, request_of

if TYPE_CHECKING:
    from prefect import Flow

    from understudy.runs.run_plan import RunPlan


Q = TypeVar("Q")
R = TypeVar("R")


def run(*, method: str, options: Mapping[str, Any], dry_run: bool, as_json: bool) -> None:
    """`understudy run`."""
    from understudy.settings import prepare_environment

    request = request_from(options)
    # Each state of each task is in Prefect's own record; the terminal shows progress bars and what went wrong.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    prepare_environment()
    from understudy.methods import registry
    from understudy.runs.earlier_charges import refuse_paid
    from understudy.runs.registration import handed_over, register
    from understudy.runs.run_plan import dry_run_of
    from understudy.runs.validation import validate

    say_unread_variables()
    with choices_said():
        validated = validate(request, method)
    chosen = registry.get(method)
    plan = validated.plan
    for note in (
        *plan.notes,
        *plan.description.warnings,
        *filter(None, [validated.replaces, validated.paid_before if dry_run else ""]),
    ):
        say(f"note: {note}")
    if dry_run:
        from understudy.tasks.engine.machine import timed

        with timed():
            estimate = chosen.preparation.estimate(plan.config, plan.promise)
        show({**dry_run_of(plan), **estimate}, as_json=as_json, title=f"{method}, dry run: nothing charged")
        return
    if validated.is_finished:
        from understudy.runs.exported import complete, read_exported

        result, outcome = (
            complete(read_exported(Path(request.out).expanduser().absolute())),
            "finished before, nothing was computed",
        )
    else:
        refuse_paid(validated.paid_before, accepts_new=request.accept_new_charge)
        say(price(plan, is_charged=validated.is_charged, accepts_new=request.accept_new_charge))
        with handed_over(request, register(validated)):
            result, outcome = ended(load(chosen.flow), request), "done"
    if result.missing:
        say(result.missing, style="bold")
    told = result.model_dump(mode="json")
    # Programs find every key; people read on their own line, above, what is missing.
    unsaid = {"missing", "lacking"} | ({"rows"} if result.rows is None else set())
    shown = told if as_json else {name: value for name, value in told.items() if name not in unsaid}
    show(shown, as_json=as_json, title=f"{method}: {outcome}")


def say_unknown_variables() -> None:
    """Say which variables change nothing, before anything is charged: a ledger may be another than was meant."""
    from understudy.settings import unknown_variables

    for unknown in unknown_variables():
        say(f"note: {unknown}")


def say_unread_variables() -> None:
    """`say_unknown_variables` of a command that is recorded in MLflow: also where a place named for MLflow is not."""
    from understudy.settings import unread_tracking

    say_unknown_variables()
    for unread in unread_tracking():
        say(f"note: {unread}")


@contextmanager
def choices_said() -> Iterator[None]:
    """Say what is chosen on a model's own texts before it is: with a large model that takes minutes."""
    logger, handler = logging.getLogger("understudy.models.choices"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("note: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def ended(flow: Flow[[Q], R], request: Q, *, again: str = "goes on from here, under the same charge") -> R:
    """Run a flow here; what it fails with is said once, by `main`, and stands in Prefect's own record.

    Args:
        flow: to be run.
        request: its one parameter.
        again: what the same command does after an interrupt.
    """
    if os.environ["PREFECT_LOGGING_LEVEL"] == "WARNING":
        for name in ("prefect.flow_runs", "prefect.task_runs"):
            logging.getLogger(name).propagate = False
    from understudy.flows.run_name import run_named
    from understudy.flows.temporary_server import given_up_with_it, start_in_turn

    try:
        with signals_unwind():
            start_in_turn()
            with given_up_with_it():
                return run_named(flow, request)
    except KeyboardInterrupt as interrupt:
        with suppress(OSError):  # a terminal that has hung up
            say(f"interrupted: the same command {again}")
        if isinstance(interrupt, Interrupted):
            sys.exit(interrupt.exit_code)
        raise


def price(plan: RunPlan, *, is_charged: bool, accepts_new: bool) -> str:
    """What a run charges, in words."""
    from understudy.privacy.shown_cost import cost_in_words, round_up

    if math.isinf(plan.epsilon):
        return (
            f"reads source {plan.source} without noise: nothing is charged and nothing promised, the result is as "
            "private as the rows"
        )
    cost = cost_in_words(plan.epsilon, plan.delta, unit=plan.unit, relation=plan.relation)
    if is_charged and accepts_new:
        return (
            f"source {plan.source} was charged {cost} for this run before; it is charged as much once more only if "
            "code or machine changed since, or what was released is gone"
        )
    if is_charged:
        return (
            f"source {plan.source} was charged {cost} for this run before; nothing more is charged: if code or machine "
            "changed since, or what was released is gone, the run stops and asks for --accept-new-charge"
        )
    # Rounded as the cost is: a charge that just fits must not look larger than its budget.
    budget = f"{round_up(plan.budget.epsilon, digits=6):g}, {round_up(plan.budget.delta, digits=3):g}"
    return f"charges source {plan.source}: {cost}, of a budget of {budget}; a repeated run is not charged again"


def request_from(options: Mapping[str, Any]) -> RunRequest:
    """The request behind the options of `run`.

    Raises:
        InputError: when an option is missing or malformed.
    """
    given = dict(options)
    if not given.get("source"):
        raise InputError(
            "--source is missing: name the private data whose budget this run spends, for example --source reviews; "
            "the same rows always use the same name"
        )
    given["budget"] = parse_budget(given["budget"]) if given["budget"] else None
    given["label_names"] = named(given["label_names"])
    return request_of(given)


def named(text: str | None) -> Sequence[str] | Mapping[str, str] | None:
    """Value in the label column -> name, from `0=negative,1=positive`, or names that are the values."""
    from understudy.data.tables import parse_label_names

    return parse_label_names(text) if text else None
