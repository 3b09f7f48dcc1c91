"""The Python API's audits and evaluations: `understudy.audit` and `understudy.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from understudy.auditing.secret_metrics import GuessedShare, guessed_shares
from understudy.evaluation.metrics import Metrics
from understudy.lazy import load
from understudy.runs.handed_tables import Table, as_files
from understudy.runs.python_requests import begin, folder_given, metrics_in, requested

# Core imports no flow: they are found by name when they are called.
_AUDIT = "understudy.flows.audit:audit"
_EVALUATE = "understudy.flows.evaluate:evaluate"
_SERVER = "understudy.flows.temporary_server:start_in_turn"
_RUN = "understudy.flows.run_name:run_named"


@dataclass(frozen=True)
class Audit:
    """What an audit found; internal, as it is computed on private rows.

    Attributes:
        bounds: attacker (`data`, `model`) -> run (`claim`, `positive_control`, `null_control`) -> lower bound on
            epsilon.
        secrets: run, as above, and `left_out` for canaries that the claim's coins left out -> share of their secrets
            that whoever has the model guesses right; empty of a method without a model.
        claimed_epsilon: what the run promises.
        detectable_epsilon: the least epsilon that the best attack on so many canaries would tell from 0.
        metrics: all figures.
        folder: of the report and of the runs.
    """

    bounds: dict[str, dict[str, float]] = field(repr=False)
    secrets: dict[str, GuessedShare] = field(repr=False)
    claimed_epsilon: float
    detectable_epsilon: float
    metrics: Metrics = field(repr=False)
    folder: Path


def audit(  # noqa: PLR0913 - one parameter per option of the command
    data: Table | str | Path,
    *,
    source: str,
    out: str | Path,
    epsilon: float,
    method: str = "conditional-generation",
    budget: tuple[float, float] | None = None,
    test: Table | str | Path | None = None,
    canaries: int | None = None,
    seed: int = 0,
    insist: bool = False,
    public_rows: bool = False,
    **options: Any,
) -> Audit:
    """Attack a run on rows with canaries in them, beside two controls; charges `source` for that run.

    Args:
        data: private rows, as of `synthesize`; rows of a public table of the same shape charge no private source.
        source: name under which these rows keep their budget.
        out: folder of the report and of the runs.
        epsilon: whose promise is audited; finite.
        method: as on the command line.
        budget: (epsilon, delta) of the source, on its first use.
        test: real rows for measuring only; None holds out about one unit in ten.
        canaries: how many; None takes 100, or a fifth of fewer than 500 units.
        seed: of the canaries; public.
        insist: charge and attack the run even where the attack misses it without noise.
        public_rows: later statements of this method and model may name what is found.
        **options: further fields of `RunRequest`.

    Raises:
        InputError: the input is wrong; nothing was charged.
        BudgetRefused: the source's budget does not allow the charge.
        UnderstudyError: the audit refutes the promise, or can say nothing; its report says so too.
    """
    from understudy.auditing.metrics import bounds_of
    from understudy.runs.audits.request import audit_of
    from understudy.runs.audits.runs import planned

    begin()
    with requested(data, test, out, source=source, epsilon=epsilon, budget=budget, **options) as run:
        request = audit_of(method, run, canaries=canaries, seed=seed, insist=insist, public_rows=public_rows)
        with planned(request):
            load(_SERVER)()
            load(_RUN)(load(_AUDIT), request)
    metrics = metrics_in(Path(run.out))
    return Audit(
        bounds=bounds_of(metrics),
        secrets=guessed_shares(metrics),
        claimed_epsilon=epsilon,
        detectable_epsilon=metrics.values["audit.one_run.detectable_epsilon"],
        metrics=metrics,
        folder=Path(run.out),
    )


def evaluate(
    synthetic: Table | str | Path,
    *,
    real: Table | str | Path,
    test: Table | str | Path,
    out: str | Path,
    text_column: str = "text",
    label_column: str = "label",
    label_names: Mapping[str | int, str] | Sequence[str | int] | None = None,
) -> Metrics:
    """Measure any synthetic table of labelled texts against real rows; charges nothing, and exports nothing.

    Args:
        synthetic: table with columns `text` and `label`.
        real: real rows that a stand-in is compared with.
        test: real rows that nothing was trained on.
        out: folder of report.html and report.json, which are made from real rows.
        text_column: of the real rows.
        label_column: of the real rows.
        label_names: value in the label column -> name; None where the values are the names.

    Returns:
        The figures; internal, as they are computed from real rows.

    Raises:
        InputError: a table is not what is expected.
        ZoneError: this process belongs to the server zone, where no real rows are read.
    """
    from understudy.runs.evaluations.inputs import check_evaluation, handed_tables
    from understudy.runs.evaluations.request import EvaluateRequest
    from understudy.runs.request import checked_request

    begin()
    columns = {"text_column": text_column, "label_column": label_column, "label_names": label_names}
    with as_files({"synthetic": synthetic, "real": real, "test": test}) as files:
        request = checked_request(EvaluateRequest, {**files, **columns, "out": folder_given(out)})
        request = request.model_copy(update={"out": str(request.folder.absolute())})
        check_evaluation(request)
        with handed_tables(request):
            load(_SERVER)()
            load(_RUN)(load(_EVALUATE), request)
    return metrics_in(request.folder)
