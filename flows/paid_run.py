"""What every flow begins with: a registered plan, its parent run, and the charge."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from prefect import get_run_logger
from prefect.runtime import deployment
from pydantic import BaseModel

from understudy.artifacts.access import ArtifactRef
from understudy.errors import InputError
from understudy.flows.purged_source import is_purged, purged, unless_purged
from understudy.flows.run_in_words import charge_in_words, promise_in_words, where_in_words
from understudy.flows.worker_places import check_places
from understudy.privacy.ledger.ledger import Ledger
from understudy.runs.exported import Exported, complete
from understudy.runs.folders import STATEMENT_IN_WORDS
from understudy.runs.registration import registered
from understudy.runs.request import RunRequest
from understudy.runs.run_plan import RunPlan
from understudy.settings import settings as environment_settings
from understudy.tasks.charge_receipt import ChargeReceipt
from understudy.tasks.charging import charge, environment_of
from understudy.tasks.engine.failures import closed_up
from understudy.tasks.engine.heartbeat import beating
from understudy.tasks.engine.prefect_links import show_statement
from understudy.tasks.engine.run_record import (
    ACCOUNTANT,
    CHARGE,
    NOTE,
    OUT,
    RELATION,
    RELEASED,
    SOURCES,
    SYNTHETIC,
    UNIT,
)
from understudy.tasks.engine.runtime import Zone
from understudy.tasks.engine.tracking import add_to_parent, parent_run
from understudy.tasks.export import export

C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True)
class PaidRun(Generic[C]):
    """A run that is charged: what its steps need.

    Attributes:
        request: what was asked for.
        plan: of the registered run; public.
        receipt: of the charge.
        tracked: id of its MLflow run.
        config: all settings.
        charged: those that private rows meet (ADR 0005).
    """

    request: RunRequest
    plan: RunPlan
    receipt: ChargeReceipt
    tracked: str
    config: C
    charged: C

    @property
    def rows(self) -> tuple[ArtifactRef, ArtifactRef]:
        """The checked rows to train on and those to measure with."""
        return self.plan.stored_rows

    def export(self, released: ArtifactRef, synthetic: ArtifactRef, metrics: ArtifactRef) -> Exported:
        """Hand over what was released and the texts made of it; the figures stay internal.

        Raises:
            SourcePurged: before the export: what a purge removed must not come back.
            UnderstudyError: after the export, when a label has no row.
        """
        if is_purged(self.plan):
            raise purged(self.plan)
        shared, out = self.request.share_real_rows, self.request.out
        result = export(self.plan, self.receipt, released, synthetic, metrics, out=out, shares_real_rows=shared)
        made = {RELEASED: released, SYNTHETIC: synthetic}
        named = {tag: ref.id for tag, ref in made.items() if not ref.is_private}
        where = where_in_words(result)
        note = f"{charge_in_words(self.receipt)}\n\n{where}"
        tags = {**named, OUT: str(Path(out).expanduser().absolute()), NOTE: note}
        add_to_parent(self.tracked, tags=tags, metrics={})
        get_run_logger().info(where)
        if result.export is not None:
            show_statement(Path(result.export) / STATEMENT_IN_WORDS, in_short=promise_in_words(self.receipt))
        return complete(result)


@contextmanager
def paid_run(request: RunRequest, settings: type[C], *code: str) -> Iterator[PaidRun[C]]:
    """Register and charge a run; what happens inside belongs to its parent run.

    Args:
        request: what is asked for.
        settings: the class of the method's settings.
        code: digests of the code that asks private rows anything.
    """
    method = str(settings.model_fields["method"].default)
    with beating():
        check_places(out=str(request.out))
        check_ledger()
        # What is wrong with a row is for the client's terminal: Prefect keeps the text of every error.
        plan = closed_up("validate", lambda: registered(request, method))
        config = plan.settings(settings)
        tracking = parent_run(plan.key, f"{method} {plan.source}", parameters={"request": request, "config": config})
        with unless_purged(plan), tracking as tracked:
            earlier = {made.id for made in Ledger.open().charges(plan.source)}
            receipt = charge(plan, environment=environment_of(*code), accept_new=request.accept_new_charge)
            origin = {SOURCES: json.dumps([f"source:{plan.source}@{receipt.charge_id}"]), CHARGE: receipt.charge_id}
            spent = {}
            for promised in receipt.label.guarantees:  # the charge's own; none of a private output
                origin |= {UNIT: promised.unit, RELATION: promised.relation, ACCOUNTANT: promised.accountant}
                spent = {"epsilon": promised.epsilon, "delta": promised.delta}
            paid = charge_in_words(receipt)
            add_to_parent(tracked, tags=origin | {NOTE: paid}, metrics=spent)
            # Of a repeated run, such as a scheduled one, whose log would read as if it were charged each time.
            again = "; it was made before, and nothing more is charged" if receipt.charge_id in earlier else ""
            get_run_logger().info("%s%s", paid, again)
            yield PaidRun(request, plan, receipt, tracked, config, plan.charged_settings(settings))


def check_ledger() -> None:
    """Refuse to begin a ledger where nobody said that there should be one.

    A worker that was started without the operator's settings would find none in its home, begin one, and every budget
    would be unspent there.

    Raises:
        InputError: naming the folder.
    """
    now = environment_settings()
    told = {"home", "ledger_url"} & now.model_fields_set
    if deployment.id and not told and not (now.home / "ledger.head").exists():
        raise InputError(
            f"ledger: found none in {now.home}, and a worker does not begin one there, for every budget would be "
            "unspent in it; start the worker with UNDERSTUDY_HOME, or UNDERSTUDY_LEDGER_URL, of the ledger that keeps "
            "your budgets, or of a new one if you have none yet"
        )


def working_zone(request: RunRequest) -> Zone:
    """The zone that takes a method's server steps: without a finite epsilon nothing may go to the server zone."""
    return "server" if math.isfinite(request.epsilon or math.inf) else "client"
