"""An evaluation as a flow: any synthetic table, measured against real rows.

request -> look at what it needs -> read the tables, measure, report

It charges nothing and exports nothing: figures and report are internal.
"""

from __future__ import annotations

import hashlib

from prefect import flow, get_run_logger

from understudy.flows.paid_run import check_ledger
from understudy.flows.run_in_words import tell_of_report
from understudy.flows.run_name import name_of_deployed
from understudy.flows.worker_places import check_places
from understudy.runs.evaluations.inputs import artifact_evaluated, check_evaluation
from understudy.runs.evaluations.request import EvaluateRequest
from understudy.tasks.engine.failures import closed_up
from understudy.tasks.engine.heartbeat import beating
from understudy.tasks.engine.run_record import EVALUATED, OUT, UNKNOWN_KIND
from understudy.tasks.engine.tracking import add_to_parent, parent_run
from understudy.tasks.table_evaluation import Evaluated, report_evaluation


@flow(name="evaluate", flow_run_name=name_of_deployed, persist_result=True, result_serializer="json")
def evaluate(request: EvaluateRequest) -> Evaluated:
    """A synthetic table and real rows in, an internal report on how well the one stands in for the others out."""
    with beating():
        check_places(out=request.out)
        # The ledger knows whose the rows are, and so which purge the report goes with.
        check_ledger()
        closed_up("validate", lambda: check_evaluation(request))
        out = str(request.folder.absolute())
        # Another run's table under the same path is another evaluation.
        made, told = artifact_evaluated(request)
        if told:
            get_run_logger().warning(told)
        key = hashlib.sha256(f"evaluate {out} {request.model_dump_json()} {made}".encode()).hexdigest()
        with parent_run(key, "evaluate", parameters={"request": request}) as tracked:
            named = {EVALUATED: made} if made else {}
            add_to_parent(
                tracked, tags={OUT: out, **named}, metrics={}, read=dict.fromkeys(named.values(), UNKNOWN_KIND)
            )
            evaluated = report_evaluation(request)
            tell_of_report(tracked, evaluated.report)
            return evaluated
