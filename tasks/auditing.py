"""Attacking the runs of an audit, and the report of what was found; all of it internal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, Field, SerializeAsAny

from understudy.artifacts.access import (
    ArtifactRef,
    ArtifactStore,
    exchange_store,
    path_of,
    private_store,
    read_json,
    read_table,
    write_json,
)
from understudy.artifacts.manifest import CONTENT_ID, PRIVATE_ID
from understudy.errors import UnderstudyError
from understudy.frozen import Frozen
from understudy.privacy import labels
from understudy.privacy.queries import Queries
from understudy.runs.run_plan import RunPlan
from understudy.tasks.engine.failures import closed_up
from understudy.tasks.engine.runtime import compute, task

if TYPE_CHECKING:
    import pyarrow as pa

    from understudy.auditing.one_run import Floats
    from understudy.methods.reading import Made

Threat = Literal["data", "model", "sums"]

# Synthetic texts that stand for the rows that the attacker of a model does not look for.
_KNOWN = 60


class Attacked(Frozen):
    """A run of an audit, as its attack sees it; public."""

    label_names: tuple[str, ...]
    delta: float
    confidence: float
    seed: int
    row_losses: str = Field(default="", description="Where the method's function of that name is; empty without.")
    left_over: str = Field(default="", description="Where the method's function of that name is; empty without.")
    paid: str = Field(default="", description="Kind of the artifact that the charge paid for.")
    codes: tuple[str, ...] = Field(default=(), description="Digests of the code that they reach; the task's has not.")
    config: SerializeAsAny[BaseModel]
    charged: SerializeAsAny[BaseModel] = Field(description="Those of the settings that private rows meet.")
    queries: Queries = Field(description="What the rows were asked, with this run's noise.")


@task(name="attack")
def attack(
    released: ArtifactRef, synthetic: ArtifactRef, canaries: ArtifactRef, others: ArtifactRef, asked: Attacked
) -> ArtifactRef:
    """Guess which canaries a run was made from, by what each attacker sees.

    Args:
        released: what the run released.
        synthetic: its table.
        canaries: with their coins and secrets.
        others: the rows that the run met beside them.
        asked: of the run.

    Returns:
        What each attacker reaches, private to the source.
    """
    from understudy.auditing.attack import figures_of
    from understudy.auditing.canaries import INCLUDED
    from understudy.auditing.canary_secrets import BESIDE_ROWS
    from understudy.auditing.echo import echoes
    from understudy.data.columns import text_columns

    table, known = read_table(canaries), read_table(synthetic)
    rows, included = table.drop_columns(list(BESIDE_ROWS)), np.array(table[INCLUDED].to_pylist(), dtype=np.bool_)
    columns = text_columns(rows)
    made, hidden = (
        [" ".join(texts) for texts in zip(*(one[name].to_pylist() for name in columns), strict=True)]
        for one in (known, rows)
    )
    made_of = _made(released)
    scores: dict[Threat, Floats] = {"data": echoes(made, hidden)}
    if asked.row_losses:
        scores["model"] = _scores_by_model(rows, known, _paid_for(made_of, asked.paid), asked)
    if asked.left_over and (by_sums := _scores_by_sums(rows, read_table(others), made_of, asked)) is not None:
        scores["sums"] = by_sums
    found = {
        threat: figures_of(of_canaries, included, delta=asked.delta, confidence=asked.confidence, seed=asked.seed)
        for threat, of_canaries in scores.items()
    }
    refs = (released, synthetic, canaries, others)
    label = labels.private(*labels.join(*(ref.label for ref in refs)).sources)
    value = {threat: figures.model_dump(mode="json") for threat, figures in found.items()}
    return write_json(value, kind="attack", label=label, parents=refs)


def _scores_by_model(rows: pa.Table, synthetic: pa.Table, released: Path, asked: Attacked) -> Floats:
    """Of each canary, by its loss and by its share in the change of the weights."""
    import pyarrow as pa

    from understudy.auditing.attack import surprises, together
    from understudy.auditing.row_losses import RowLosses
    from understudy.auditing.weights import shares
    from understudy.data.tables import as_rows
    from understudy.lazy import load
    from understudy.methods.reading import RowsToRead

    # Who has the model has the table too. Weights are compared in float32: their change would be rounded away.
    everything = pa.concat_tables([rows, as_rows(synthetic.slice(0, _KNOWN), like=rows, names=asked.label_names)])
    on = compute().in_float32
    before, after = (
        load(asked.row_losses)(RowsToRead(everything, asked.label_names, asked.config, model, on))
        for model in (None, released)
    )
    losses: list[RowLosses] = [before, after]
    return together(
        [
            surprises(*(read.values()[: rows.num_rows] for read in losses)),
            *shares(before, after, canaries=rows.num_rows),
        ]
    )


def _scores_by_sums(rows: pa.Table, others: pa.Table, released: Made, asked: Attacked) -> Floats | None:
    """Of each canary, by its share in what the other rows leave of the released sums."""
    from understudy.auditing.known_rows import coin_scores
    from understudy.lazy import load
    from understudy.methods.reading import SumsToRead

    left = load(asked.left_over)(
        SumsToRead(rows, others, asked.label_names, asked.charged, asked.queries, released, compute())
    )
    return None if left is None else coin_scores(left)


def released_by(released: ArtifactRef, asked: Attacked) -> Path:
    """Folder of what a run's charge paid for, which the attacker of its model has."""
    return _paid_for(_made(released), asked.paid)


def _paid_for(released: Made, kind: str) -> Path:
    """Folder of what the charge paid for, from which the rest followed: the statement calls it released as well."""
    found = released.behind(kind)
    return found[-1].folder if found else released.folder


def _made(released: ArtifactRef) -> Made:
    """An artifact with what it was made of, each looked at once, as far as its zone keeps that."""
    from understudy.methods.reading import Made

    stores = [(PRIVATE_ID, private_store()), (CONTENT_ID, exchange_store())]
    known: dict[str, Made] = {}

    def made(ref: ArtifactRef) -> Made:
        if ref.id not in known:
            parents = [known.get(name) or made(store.find(name)) for name, store in kept_of(ref)]
            known[ref.id] = Made(ref.kind, path_of(ref), tuple(parents))
        return known[ref.id]

    def kept_of(ref: ArtifactRef) -> list[tuple[str, ArtifactStore]]:
        return [(name, store) for name in ref.parents for pattern, store in stores if pattern.fullmatch(name)]

    return made(released)


class Audited(Frozen):
    """What an audit tells Prefect when it has ended: no figure, for figures are made of private rows.

    Attributes:
        report: the page; internal, not private. report.json beside it has the figures.
        charged: whether the claim was run: not where no attacker catches it without noise.
        refuted: whether an attacker proves a larger epsilon than was claimed.
    """

    report: str
    charged: bool
    refuted: bool


def caught(found: ArtifactRef) -> bool:
    """Whether an attack on the positive control, by any attacker, finds something.

    The flow itself asks, and Prefect keeps the text of every error, so one about figures leaves closed up.

    Raises:
        TaskFailed: what is stored are not the figures of an attack.
    """
    from understudy.auditing.attack import AttackFigures

    return closed_up(
        "attack", lambda: any(AttackFigures.model_validate(figures).finds for figures in read_json(found).values())
    )


@task(name="report-audit", cache=False, computes=False)
def report_audit(
    found: dict[str, ArtifactRef],
    guesses: dict[str, ArtifactRef],
    plan: RunPlan,
    count: int,
    confidence: float,
    detectable: float,
    *,
    out: str,
    of_public_rows: bool,
) -> Audited:
    """Write report.html and report.json into the audit's folder, and keep what was found on public rows.

    Args:
        found: condition -> what each attacker reaches.
        guesses: condition -> what was guessed of secrets; empty for a method without a model.
        plan: of the claim.
        count: of canaries.
        confidence: of all bounds together.
        detectable: least epsilon that could be told from 0.
        out: the audit's folder.
        of_public_rows: whether what is found may stand in later statements.
    """
    from understudy.auditing.attack import AttackFigures
    from understudy.auditing.metrics import bounds_of, metrics_of
    from understudy.auditing.reconstruction import Reconstruction
    from understudy.auditing.secret_metrics import secret_metrics
    from understudy.evaluation.metrics import Metrics, merge
    from understudy.privacy.ledger.ledger import Ledger
    from understudy.runs.audits.on_public_rows import keep, public_audit
    from understudy.runs.audits.report import write_audit
    from understudy.runs.folders import read_record

    def read() -> Metrics:
        figures = {
            condition: {threat: AttackFigures.model_validate(value) for threat, value in read_json(ref).items()}
            for condition, ref in found.items()
        }
        guessed = {
            condition: {side: Reconstruction.model_validate(value) for side, value in read_json(ref).items()}
            for condition, ref in guesses.items()
        }
        return merge(
            metrics_of(figures, claimed=plan.epsilon, canaries=count, detectable=detectable, confidence=confidence),
            secret_metrics(guessed),
        )

    folder = Path(out).expanduser().absolute()
    page, metrics = write_audit(folder, plan, read, claim=folder / "claim" if "claim" in found else None)
    bounds = bounds_of(metrics)
    if of_public_rows and "claim" in found:
        charge = Ledger.open().charge(read_record(folder / "claim").charge_id)
        keep(public_audit(plan, metrics, bounds, code_digest=charge.code_digest))
    refuted = any(found.get("claim", 0.0) > plan.epsilon for found in bounds.values())
    return Audited(report=str(page), charged="claim" in found, refuted=refuted)


def conclusive(result: Audited) -> Audited:
    """The result of an audit that says something, and nothing against the claim; its report is written in any case.

    Raises:
        UnderstudyError: an attacker proves a larger epsilon than was claimed, or nobody catches the run without noise,
            so that the claim was not run.
    """
    if result.refuted:
        raise UnderstudyError(
            "the run leaks more than it promises: right guesses of canaries prove a larger epsilon than was claimed; "
            f"see {result.report}, and hand nothing of this method over"
        )
    if not result.charged:
        raise UnderstudyError(
            "this audit can say nothing: no attack catches the same run without noise, so an attack that finds nothing "
            "in the run as asked for would mean nothing; nothing was charged. Take more --canaries, more rows, or "
            f"settings that learn more, such as more epochs, or give --insist; see {result.report}"
        )
    return result
