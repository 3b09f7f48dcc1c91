"""The last task: statement, export and report into the user's folder."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from understudy.admission import HOLD_OUT_EVERY, Admission
from understudy.artifacts import ArtifactRef, read_json, read_table
from understudy.conditional_generation.planning import calibrated_plan, mechanism_facts
from understudy.delivery import RunRecord, named_labels, write_export, write_internal
from understudy.evaluation.metrics import Metrics
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.events import event_from_json, without_amplification
from understudy.privacy.ledger import Charge, Ledger
from understudy.privacy.statement import (
    Access,
    PretrainedModel,
    StatementFacts,
    build_statement,
    render_markdown,
)
from understudy.reporting.report import About, BudgetUse, build_report
from understudy.tasks.runtime import task
from understudy.tasks.ticket import Ticket


class Delivered(BaseModel):
    """Where a run's results are, and what they cost."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    export: str | None
    report: str
    statement: dict[str, Any]
    model: str
    synthetic: str


@task(name="deliver", cache=False)
def deliver(
    run: Admission,
    ticket: Ticket,
    model: ArtifactRef,
    synthetic: ArtifactRef,
    metrics: ArtifactRef,
    *,
    out: str,
) -> Delivered:
    """Write DIR/export and DIR/internal; the same inputs give the same files but for the statement's time."""
    ledger = Ledger.open()
    paid = ledger.charge(ticket.charge_id)
    statement = build_statement(
        statement_facts(run, paid, model), charge=paid, source=ledger.source(run.source), spent=ledger.spent(run.source)
    )
    record = RunRecord(
        method="conditional-generation",
        source=run.source,
        charge_id=ticket.charge_id,
        label_names=run.label_names,
        config=run.config.model_dump(mode="json"),
        model=model,
        synthetic=synthetic,
        metrics=metrics,
    )
    folder = Path(out).expanduser().absolute()
    export = write_export(folder, record, statement, render_markdown(statement)) if paid.exportable else None
    internal = write_internal(
        folder, record, lambda inner: _write_report(inner, run, ledger, paid, synthetic, metrics, statement)
    )
    return Delivered(
        export=str(export) if export else None,
        report=str(internal / "report.html"),
        statement={key: statement[key] for key in ("epsilon", "epsilon_rdp", "delta", "unit", "relation", "verdict")},
        model=model.id,
        synthetic=synthetic.id,
    )


def statement_facts(run: Admission, paid: Charge, model: ArtifactRef) -> StatementFacts:
    """What the statement says about this run; public values only."""
    planned = calibrated_plan(run.config, n=run.n, epsilon=run.epsilon, delta=run.delta)
    unamplified = without_amplification(event_from_json(paid.event))
    config = run.config.model_dump_json()
    return StatementFacts(
        mechanisms=mechanism_facts(planned),
        contributions=(
            "One example is one row of the table. Each gradient of one example is clipped to the stated norm; an "
            "example adds at most that much to each noised sum. An example counts once in the class histogram."
        ),
        trust="Whoever runs the client zone sees the rows; no other party does.",
        against="Everyone who sees only what is exported: the synthetic rows, the model and this statement.",
        epsilon_without_amplification=epsilon_pld(unamplified, run.delta) if paid.exportable else None,
        released=(
            f"the fine-tuned model {model.id}",
            "any number of texts generated from it",
            *(("the noised class histogram",) if planned.histogram_sigma is not None else ()),
        ),
        accesses=(
            Access(task="admit", reads="the rows", through="checks that refuse or accept before anything is charged"),
            Access(task="train", reads="the rows", through="the gateway's Poisson sampling and Gaussian sums"),
            Access(task="evaluate", reads="rows and held-out rows", through="none: its figures are internal"),
        ),
        choices="Settings and defaults were fixed before the run; no checkpoint was chosen, the last one is used.",
        declared_public={
            "n": run.n,
            "label list": list(run.label_names),
            "padded length in tokens": run.config.train.max_length,
            "held-out rule": f"every {HOLD_OUT_EVERY}th row, unless other rows were named",
        },
        pretrained_models=(PretrainedModel(name=run.config.model, digest=run.model_digest),),
        config_digest=hashlib.sha256(config.encode()).hexdigest(),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        not_private=("everything in internal/: it is computed from real rows and must not be handed over",),
    )


def _write_report(
    folder: Path,
    run: Admission,
    ledger: Ledger,
    paid: Charge,
    synthetic: ArtifactRef,
    metrics: ArtifactRef,
    statement: dict[str, Any],
) -> None:
    table = named_labels(read_table(synthetic), run.label_names)
    spent_epsilon, spent_delta = ledger.spent(run.source)
    counted = paid.epsilon if paid.kind == "counted" else 0.0
    counted_delta = paid.delta if paid.kind == "counted" else 0.0
    drawn = read_json(synthetic)
    build_report(
        folder,
        title=f"Synthetic stand-in for {run.source}",
        metrics=Metrics.model_validate(read_json(metrics)),
        statement=statement,
        samples=table.to_pylist(),
        budget=BudgetUse(
            epsilon=run.budget.epsilon,
            delta=run.budget.delta,
            epsilon_before=max(spent_epsilon - counted, 0.0),
            delta_before=max(spent_delta - counted_delta, 0.0),
            epsilon_run=counted,
            delta_run=counted_delta,
        ),
        about=About(
            made=f"{table.num_rows} labelled texts in {len(run.label_names)} classes, by conditional generation",
            label_names=run.label_names,
            created=str(statement["time"]),
            facts={
                "charge": paid.id,
                "model": run.config.model,
                "variant": f"{run.config.variant}, {run.config.update} update",
                "drawn": str(sum(drawn["drawn"].values())),
                "dropped": str(sum(sum(reasons.values()) for reasons in drawn["dropped"].values())),
                "missing": str(sum(drawn["shortfall"].values())),
            },
        ),
    )
