"""What `understudy evaluate` does; imported only when it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from understudy.flows.commands.run import ended, named, say_unread_variables
from understudy.flows.commands.terminal import say, show


def evaluate(*, fields: Mapping[str, Any], label_names: str | None, as_json: bool) -> None:
    """`understudy evaluate`: measure any synthetic table."""
    from understudy.runs.evaluations.request import EvaluateRequest
    from understudy.runs.request import checked_request
    from understudy.settings import prepare_environment

    request = checked_request(EvaluateRequest, {**fields, "label_names": named(label_names)})
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    prepare_environment()
    from understudy.runs.evaluations.inputs import artifact_evaluated, check_evaluation, handed_tables
    from understudy.runs.python_requests import metrics_in

    say_unread_variables()
    check_evaluation(request)
    _, told = artifact_evaluated(request)
    if told:
        say(f"note: {told}")
    with handed_tables(request):
        from understudy.flows.evaluate import evaluate as flow

        ended(flow, request, again="begins anew; nothing was charged")
    show({"report": str(request.folder / "report.html"), **metrics_in(request.folder).values}, as_json=as_json)
