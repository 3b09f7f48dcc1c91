"""What a flow run is called in Prefect's UI where a worker starts it."""

import re

import pytest
from prefect import flow, get_client
from prefect.flow_engine import run_flow

from understudy.flows.deploy import FURTHER
from understudy.flows.run_name import name_of_deployed
from understudy.lazy import load
from understudy.methods import registry
from understudy.runs.audits.request import AuditRequest
from understudy.runs.request import RunRequest

RUN = {"data": "rows.parquet", "source": "ward {7}", "out": "out", "epsilon": 3}


@flow(flow_run_name=name_of_deployed, name="method")
def of_run(request: RunRequest) -> None:
    """Nothing."""


@flow(flow_run_name=name_of_deployed, name="audit")
def of_audit(request: AuditRequest) -> None:
    """Nothing."""


def name_of(made, request, given=None):
    """The name of a run that the server knows before its process begins, as that of a deployment is, and after it."""
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(made, name=given, parameters={"request": request})
        begun_as = run.name
        run_flow(made, flow_run=run, parameters={"request": request})
        return begun_as, client.read_flow_run(run.id).name


@pytest.mark.parametrize(
    ("made", "request_of", "begins"),
    [(of_run, RUN, "method-ward {7}"), (of_audit, {"method": "method", "run": RUN}, "audit-ward {7}")],
)
def test_a_run_that_prefect_has_named_is_told_from_others_by_its_method_and_source(
    made, request_of, begins, prefect_server
):
    by_chance, found = name_of(made, request_of)
    assert re.fullmatch("[a-z]+-[a-z]+", by_chance)
    assert found == f"{begins}-{by_chance}"


@pytest.mark.parametrize("given", ["Nightly", "reviews of November", "method-ward-odd-otter"])
def test_a_name_that_somebody_gave_stays(given, prefect_server):
    assert name_of(of_run, RUN, given) == (given, given)


@pytest.mark.parametrize("place", [*(registry.get(name).flow for name in registry.names()), *FURTHER])
def test_every_flow_of_a_deployment_is_named_so(place):
    assert load(place).flow_run_name is name_of_deployed
