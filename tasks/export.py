"""The last task: statement, export and report into the user's folder."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from understudy.artifacts.access import ArtifactRef, read_json, read_table
from understudy.data.tables import named_labels
from understudy.evaluation.metrics import Metrics
from understudy.lazy import load
from understudy.privacy.ledger.budget import Cost, spent
from understudy.privacy.ledger.ledger import Charge, Ledger, SourceRecord
from understudy.privacy.queries import epsilon_without_amplification, queries_from_json
from understudy.privacy.statement import (
    Access,
    PretrainedModel,
    StatementFacts,
    build_statement,
)
from understudy.privacy.statement_words import render_markdown
from understudy.reporting.report import About, BudgetUse, build_report
from understudy.reporting.worth import Completeness, completeness_of
from understudy.runs import finished_plans
from understudy.runs.audits.on_public_rows import kept
from understudy.runs.exported import Exported, exported
from understudy.runs.finished_folders import forget_withheld_before
from understudy.runs.folders import RunRecord, StatementFiles, write_results
from understudy.runs.run_plan import RunPlan, config_digest
from understudy.runs.split import LABELS_DISCLOSED
from understudy.runs.units import hold_out_note
from understudy.tasks.charge_receipt import ChargeReceipt
from understudy.tasks.engine.runtime import task


@task(name="export", cache=False, computes=False)
def export(
    run: RunPlan,
    receipt: ChargeReceipt,
    released: ArtifactRef,
    synthetic: ArtifactRef,
    metrics: ArtifactRef,
    *,
    out: str,
    shares_real_rows: bool = False,
) -> Exported:
    """Write DIR/export and DIR/internal; the same inputs give the same files but for the statement's time."""
    ledger = Ledger.open()
    paid = ledger.charge(receipt.charge_id)
    statement = build_statement(
        statement_facts(run, paid, released, restarts=ledger.restarts(paid.id), lost=_lost(ledger)),
        charge=paid,
        source=ledger.source(run.source),
        spent=ledger.spent(run.source),
    )
    record = RunRecord(
        method=run.method,
        source=run.source,
        charge_id=receipt.charge_id,
        label_names=run.label_names,
        config=run.config.model_dump(mode="json"),
        released=released,
        synthetic=synthetic,
        metrics=metrics,
    )
    folder = Path(out).expanduser().absolute()
    exports = paid.exportable or shares_real_rows

    def placed() -> None:
        forget_withheld_before(folder, run=run.key)
        if paid.status == "released":
            finished_plans.remember(paid.request_key, run, folder)

    write_results(
        folder,
        record,
        lambda inner: _write_report(inner, run, ledger, paid, synthetic, metrics, statement),
        statement=StatementFiles(statement, render_markdown(statement)) if exports else None,
        shares_real_rows=shares_real_rows,
        placed=placed,
    )
    return exported(folder, record, statement, _completeness(run, synthetic))


def _completeness(run: RunPlan, synthetic: ArtifactRef) -> Completeness:
    """Which rows a run made, from the stored table and the counts beside it."""
    table = named_labels(read_table(synthetic), run.label_names)
    labels = table["label"].to_pylist() if "label" in table.column_names else [None] * table.num_rows
    return completeness_of(labels, read_json(synthetic)["shortfall"])


def _lost(ledger: Ledger) -> tuple[str, ...]:
    """A warning for every loss of ledger entries that somebody accepted."""
    return tuple(
        f"the ledger lost entries, which was accepted on {loss['at']}: what was spent before that may not be counted"
        for loss in ledger.losses()
    )


def statement_facts(
    run: RunPlan, paid: Charge, released: ArtifactRef, *, restarts: int, lost: tuple[str, ...] = ()
) -> StatementFacts:
    """What the statement says about this run; public values only."""
    facts = run.description
    disclosed = (LABELS_DISCLOSED,) if run.labels_from_data else ()
    queries = queries_from_json(paid.queries)
    config = config_digest(run)
    return StatementFacts(
        method=run.method,
        mechanisms=facts.mechanisms,
        contributions=facts.contributions,
        trust=facts.trust,
        against=facts.against,
        epsilon_without_amplification=(
            epsilon_without_amplification(queries, delta=paid.delta) if paid.exportable else None
        ),
        released=(f"the {released.kind} {released.id}", *facts.released),
        accesses=(
            Access(
                task="validate", reads="the rows", through="checks that refuse or accept before anything is charged"
            ),
            Access(
                task="charge",
                reads="the rows",
                through="keyed hashes, which stay in the ledger: they tell a repeated run and a known row",
            ),
            *facts.accesses,
            *facts.evaluations,
        ),
        choices=facts.choices,
        declared_public={
            "n": run.n,
            **({"label list": list(run.label_names)} if run.label_names else {}),
            **facts.declared_public,
            "held-out rule": hold_out_note(run.rows, run.n, has_test=run.has_test),
        },
        pretrained_models=(
            PretrainedModel(name=run.model_name, digest=run.model_digest),
            *facts.pretrained_models,
        ),
        inherited=run.inherited,
        config_digest=config,
        audits=tuple(audit.in_words(config, paid.code_digest) for audit in kept(run.method, run.model_digest)),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        restarts=restarts,
        heuristics=(*disclosed, *facts.heuristics),
        warnings=(*lost, *disclosed, *facts.warnings),
        floating_point=facts.floating_point,
        not_private=("everything in internal/: it is computed from real rows and must not be handed over",),
    )


def _write_report(
    folder: Path,
    run: RunPlan,
    ledger: Ledger,
    paid: Charge,
    synthetic: ArtifactRef,
    metrics: ArtifactRef,
    statement: dict[str, Any],
) -> None:
    table = named_labels(read_table(synthetic), run.label_names)
    drawn = read_json(synthetic)
    build_report(
        folder,
        title=f"Synthetic stand-in for {run.source}",
        metrics=Metrics.model_validate(read_json(metrics)),
        method=run.method,
        sections=load(run.sections) if run.sections else None,
        statement=statement,
        samples=table.to_pylist(),
        budget=budget_use(ledger.source(run.source), ledger.costs(run.source), paid),
        about=About(
            made=f"{_made(table, len(run.label_names))}, by {run.method}",
            label_names=run.label_names,
            created=str(statement["time"]),
            completeness=_completeness(run, synthetic),
            facts={
                "charge": paid.id,
                "model": run.model_name,
                **run.report_facts,
                "drawn": str(sum(drawn["drawn"].values())),
                "dropped": str(sum(sum(reasons.values()) for reasons in drawn["dropped"].values())),
                "missing": str(sum(drawn["shortfall"].values())),
            },
        ),
    )


def budget_use(source: SourceRecord, costs: Mapping[str, Cost], paid: Charge) -> BudgetUse:
    """What a run took of its source's budget: by how much all charges, by id, cost more than those beside its own.

    That is its epsilon where epsilons add up, and less where Renyi bounds do.
    """
    others = [cost for charge, cost in costs.items() if charge != paid.id]
    before, whole = spent(source, others), spent(source, [*costs.values()])
    epsilon, delta = (max(after - earlier, 0.0) for earlier, after in zip(before, whole, strict=True))
    return BudgetUse(
        epsilon=source.epsilon,
        delta=source.delta,
        epsilon_before=before[0],
        delta_before=before[1],
        epsilon_run=epsilon,
        delta_run=delta,
    )


def _made(table: pa.Table, classes: int) -> str:
    rows = table.num_rows
    if "instruction" in table.column_names:
        return f"{rows} instructions with responses"
    return f"{rows} labelled texts in {classes} classes" if classes else f"{rows} texts"
