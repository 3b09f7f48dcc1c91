"""What a flow leaves in Prefect's store is JSON wherever it ran: reading it back executes nothing."""

import json

import pytest
from prefect.serializers import JSONSerializer
from prefect.settings import (
    PREFECT_RESULTS_DEFAULT_SERIALIZER,
    PREFECT_RESULTS_LOCAL_STORAGE_PATH,
    temporary_settings,
)

from understudy.flows.deploy import _flows
from understudy.runs.exported import Exported

RESULT = Exported(
    export=None,
    report="out/internal/report.html",
    statement={"epsilon": 3.0, "epsilon_rdp": None, "delta": 1e-5, "unit": "example", "verdict": "certified"},
    released="a",
    synthetic="b",
    rows=3,
    lacking=("good",),
)
FLOWS = {flow.name: flow for flow, _ in _flows()}


def test_every_flow_of_a_deployment_is_looked_at():
    assert len([name for name in FLOWS if name.endswith("-server")]) == 2
    assert len(FLOWS) >= 7


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_names_its_serializer_whatever_the_environment_says(name):
    assert FLOWS[name].result_serializer == "json"
    assert FLOWS[name].persist_result is not name.endswith("-server"), "a server's answer is its state's message"


@pytest.mark.parametrize("name", [name for name in FLOWS if not name.endswith("-server")])
def test_the_result_is_stored_as_json_and_read_back_the_same(name, prefect_server, request_of, tmp_path, monkeypatch):
    """Even where Prefect's own default, pickle, is in force, as in a worker."""
    flow = FLOWS[name].with_options()
    monkeypatch.setattr(flow, "fn", lambda request: RESULT)
    place = tmp_path / "results"
    with temporary_settings({PREFECT_RESULTS_LOCAL_STORAGE_PATH: place, PREFECT_RESULTS_DEFAULT_SERIALIZER: "pickle"}):
        assert flow(request_of()) == RESULT
    (stored,) = place.iterdir()
    content = stored.read_bytes()
    assert json.loads(content)["data"]["released"] == RESULT.released
    assert JSONSerializer().loads(content) == RESULT
