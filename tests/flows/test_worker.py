"""A deployment from prefect.yaml on a real Prefect server, run by a real worker: the same artifacts, one charge."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from prefect import Flow

from understudy.delivery import read_record
from understudy.flows.cli import Method
from understudy.privacy.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(tmp_path):
    """A Prefect server on a free port of this machine; gives the environment of its clients."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | {
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_for(f"http://127.0.0.1:{port}/api/health", process, tmp_path / "server.log")
            yield environment
        finally:
            process.terminate()
            process.wait(timeout=60)


def wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"expected a Prefect server within 180 s: {log.read_text()[-2000:]}")


def prefect(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *words],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_every_method_of_the_command_line_has_a_deployment_that_imports():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    flows = {}
    for deployment in deployments:
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow = getattr(import_module(module), name)
        assert isinstance(flow, Flow)
        flows[flow.name] = flow
        assert (deployment["name"], deployment["work_pool"]["name"]) == ("default", "client")
    assert len(flows) == len(deployments), "two deployments of one flow and name: the later would replace the earlier"
    assert flows.keys() == {method.value for method in Method}
    # What the UI draws its form from, and what the command line hands over.
    assert {tuple(flow.parameters.properties) for flow in flows.values()} == {("request",)}


def test_a_worker_makes_the_artifacts_of_the_command_line(server, request_of, tmp_path, prefect_server):
    request = request_of(out=str(tmp_path / "worker-out"))
    prefect(server, "work-pool", "create", "client", "--type", "process")
    prefect(server, "--no-prompt", "deploy", "--all")
    parameters = json.dumps({"request": request.model_dump(mode="json")})
    prefect(server, "deployment", "run", "conditional-generation/default", "--params", parameters)
    prefect(server, "worker", "start", "--pool", "client", "--run-once")
    by_worker = read_record(tmp_path / "worker-out")
    statement = json.loads((tmp_path / "worker-out/export/statement.json").read_text())
    assert statement["epsilon"] <= 3

    from understudy.flows.conditional_generation import conditional_generation

    conditional_generation(request_of(out=str(tmp_path / "here-out")))
    here = read_record(tmp_path / "here-out")
    assert (here.released, here.synthetic) == (by_worker.released, by_worker.synthetic)
    assert here.metrics == by_worker.metrics, "nothing was computed again"
    assert len(Ledger.open().charges("ward")) == 1
