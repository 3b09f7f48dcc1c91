"""A deployment from prefect.yaml on a real Prefect server, run by a real worker: the same artifacts, one charge."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from importlib import import_module
from pathlib import Path

import fork_server
import forked
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from homes import bare_environment, home_environment
from kill_and_resume import digests
from prefect import Flow, flow, get_client
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.states import Paused
from prefect_servers import flows_told_to, held_port, wait_for
from tests_support import SMALL, SMALL_ROUND

from understudy.data.digests import row_digests
from understudy.data.samples import generate
from understudy.errors import InputError
from understudy.flows.deploy import FURTHER, _close
from understudy.flows.preference_optimization import SERVER
from understudy.lazy import load
from understudy.methods import registry
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.runs.evaluations.request import EvaluateRequest
from understudy.runs.folders import read_record
from understudy.runs.request import Budget, RunRequest
from understudy.settings import settings
from understudy.tasks.engine.heartbeat import EVENT, beating
from understudy.tasks.housekeeping import purge_source

# What a worker's processes run is compared with a run of this one.
pytestmark = pytest.mark.usefixtures("real_encoder")

ROUNDS = ("rounds=1", *SMALL_ROUND)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory, empty_prefect_database):
    """A Prefect server on a free port of this machine, with what `understudy deploy` makes; its clients' environment.

    Its log lies in its home, `PREFECT_HOME`.
    """
    home = tmp_path_factory.mktemp("prefect")
    shutil.copy(empty_prefect_database, home)
    environment = bare_environment() | {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        # How often it looks for runs that have fallen silent.
        "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
        # Services that no test here asks about.
        **{
            f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
            for service in ("LATE_RUNS", "FOREMAN", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "REPOSSESSOR")
        },
        # A worker takes what is due within this time; the run then waits for its moment.
        "PREFECT_WORKER_PREFETCH_SECONDS": "120",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        # A run is dead after ten seconds of silence.
        "UNDERSTUDY_HEARTBEAT_S": "2",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port"]
    with held_port() as port, (home / "server.log").open("w") as log:
        environment["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        process = subprocess.Popen([*command, str(port)], env=environment, stdout=log, stderr=log)
        try:
            wait_for(environment["PREFECT_API_URL"], process.poll, home / "server.log")
            tool("understudy.flows.cli", environment | home_environment(home / "operator"), "deploy")
            yield environment
        finally:
            process.terminate()
            process.wait(timeout=60)


def taken_by_nobody(api: str) -> str:
    """A run that stands as Pending, as if a worker had taken it: it is not scheduled, so no worker may take it."""
    deployment = ask(f"{api}/deployments/name/conditional-generation/default")["id"]
    asked = RunRequest(
        data="sample:reviews", source="ward", out="out", epsilon=3.0, budget=Budget(epsilon=8, delta=0.01)
    )
    body = {"parameters": {"request": asked.model_dump(mode="json")}, "state": {"type": "PENDING", "name": "Pending"}}
    return ask(f"{api}/deployments/{deployment}/create_flow_run", body)["id"]


@pytest.fixture(scope="module")
def never_begun(deployed):
    """A run that a worker took, and whose process died before its first heartbeat: long before a test asks about it."""
    return taken_by_nobody(deployed["PREFECT_API_URL"])


@pytest.fixture(scope="module")
def never_cancelled(deployed):
    """A run that was cancelled when its worker and its process were dead: long before a test asks about it."""
    api = deployed["PREFECT_API_URL"]
    run = taken_by_nobody(api)
    ask(f"{api}/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": True})
    return run


@pytest.fixture(scope="module")
def prefect_server(deployed):
    """Flows in the tests' own process are told to the same server."""
    with flows_told_to(deployed["PREFECT_API_URL"]):
        yield


@pytest.fixture
def server(deployed, never_begun, never_cancelled, home, prefect_server):
    """The environment of the server's clients, with the settings of this test."""
    return deployed | {name: value for name, value in os.environ.items() if name.startswith("UNDERSTUDY_")}


def prefect(environment: dict[str, str], *words: str, within: float = 500) -> str:
    return tool("prefect", environment, *words, within=within)


def tool(module: str, environment: dict[str, str], *words: str, within: float = 500) -> str:
    """What a command says, in a process of its own that has imported already."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        streams = [said.fileno(), said.fileno(), errors.fileno()]
        command = ["-m", module, *words]
        process = fork_server.start(command, environment=environment, folder=str(ROOT), streams=streams)
        wait_until(lambda: process.poll() is not None, within=within)
        out, error = (os.pread(file.fileno(), 1_000_000, 0).decode() for file in (said, errors))
    assert process.returncode == 0, out[-2000:] + error[-2000:]
    return out


def test_every_method_of_the_command_line_has_a_deployment_that_imports():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    flows = {}
    for deployment in deployments:
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow = getattr(import_module(module), name)
        assert isinstance(flow, Flow)
        flows[flow.name] = flow
        pool = "server" if flow.name.endswith("-server") else "client"
        assert (deployment["name"], deployment["work_pool"]["name"]) == ("default", pool)
    assert len(flows) == len(deployments), "two deployments of one flow and name: the later would replace the earlier"
    served = {name: flows.pop(name) for name in list(flows) if name.endswith("-server")}
    assert f"{served[SERVER.name].name}/default" == SERVER.deployment
    assert {tuple(flow.parameters.properties) for flow in served.values()} == {("order",)}
    assert flows.keys() == {*registry.BUILT_IN, *(load(place).name for place in FURTHER)}
    # What the UI draws its form from, and what the command line hands over.
    assert {tuple(flow.parameters.properties) for flow in flows.values()} == {("request",)}


def test_deploying_again_makes_nothing_twice_and_leaves_what_an_operator_has_set(deployed):
    api, home = deployed["PREFECT_API_URL"], Path(deployed["PREFECT_HOME"])
    place = f"{api}/deployments/name/gradient-matching/default"
    schedule = {"schedule": {"interval": 86400, "anchor_date": "2040-01-01T00:00:00Z"}, "active": False}
    ask(f"{api}/deployments/{ask(place)['id']}/schedules", [schedule])
    ask(f"{api}/work_pools/server", {"concurrency_limit": 2}, method="PATCH")
    done = json.loads(tool("understudy.flows.cli", deployed | home_environment(home / "operator"), "deploy", "--json"))
    assert {said.split()[0] for name, said in done.items() if not name.startswith(("deployment", "auto"))} == {"was"}
    assert len(ask(place)["schedules"]) == 1
    assert len(ask(f"{api}/automations/filter", {})) == 3
    pools = {pool["name"]: pool["concurrency_limit"] for pool in ask(f"{api}/work_pools/filter", {})}
    assert pools == {"client": 4, "server": 2}, "one as it was made, and one as an operator has set it"
    queues = {(queue["work_pool_name"], queue["name"]) for queue in ask(f"{api}/work_queues/filter", {})}
    assert {(pool, queue) for pool in ("client", "server") for queue in ("cpu", "gpu")} <= queues
    assert ask(f"{api}/v2/concurrency_limits/gpu")["limit"] == 1
    # As `prefect deploy --all` makes them of prefect.yaml.
    for wanted in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]:
        module, _, name = wanted["entrypoint"].rpartition(".")
        found = ask(f"{api}/deployments/name/{getattr(import_module(module), name).name}/default")
        for field in ("entrypoint", "tags"):
            assert found[field] == wanted[field], field
        place = {"name": found["work_pool_name"], "work_queue_name": found["work_queue_name"]}
        assert place == wanted["work_pool"]


def test_a_deployment_takes_no_parameter_that_its_flow_has_not(deployed, prefect_server):
    """The server refuses it at once; the run would crash with a traceback. So does `deploy` what an operator gave."""
    flow, deployments = load("understudy.flows.compare:compare"), f"{deployed['PREFECT_API_URL']}/deployments"
    found = ask(f"{deployments}/name/compare/default")
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(f"{deployments}/{found['id']}/create_flow_run", {"parameters": {"request": {}, "foo": 1}})
    assert refused.value.code == HTTPStatus.CONFLICT
    assert b"'foo' was unexpected" in refused.value.read()
    schema = {**found["parameter_openapi_schema"], "additionalProperties": True}
    open_to_all = {"parameter_openapi_schema": schema, "parameters": {"foo": 1}}
    ask(f"{deployments}/{found['id']}", open_to_all, method="PATCH")
    with get_client(sync_client=True) as client:
        with pytest.raises(InputError, match=r"compare/default.*'foo' was unexpected.*Prefect UI"):
            _close(client, flow)
        ask(f"{deployments}/{found['id']}", {"parameters": {}}, method="PATCH")
        _close(client, flow)
    assert ask(f"{deployments}/{found['id']}")["parameter_openapi_schema"] == found["parameter_openapi_schema"]


def test_a_deployment_of_ones_own_knows_its_request_and_its_schedule(deployed, request_of, tmp_path):
    """As the guide of scheduled runs has it; a schedule alone makes runs that have no request."""
    asked = {"request": request_of(out=str(tmp_path / "out")).model_dump(mode="json")}
    entrypoint = "understudy.flows.conditional_generation.conditional_generation"
    place = ("--name", "nightly", "--pool", "client", "--work-queue", "cpu")
    when = ("--cron", "0 3 1 1 *", "--params", json.dumps(asked))
    prefect(deployed, "--no-prompt", "deploy", entrypoint, *place, *when)
    api = f"{deployed['PREFECT_API_URL']}/deployments"
    found = ask(f"{api}/name/conditional-generation/nightly")
    ask(f"{api}/{found['id']}", method="DELETE")
    assert found["parameters"] == asked
    assert found["entrypoint"] == entrypoint
    assert [made["schedule"]["cron"] for made in found["schedules"]] == ["0 3 1 1 *"]
    assert (found["work_pool_name"], found["work_queue_name"]) == ("client", "cpu")


def ask(place: str, body: object = None, *, method: str | None = None) -> object:
    """What the server's API answers: to a question with a body, or to a plain one.

    While another has the lock of its SQLite database it rolls back and answers 503; its clients then ask again.
    """
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(place, data=data, headers={"Content-Type": "application/json"}, method=method)
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return json.loads(answer.read() or "null")
        except urllib.error.HTTPError as refused:
            if refused.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def scheduled_run(api: str, deployment: str, server_log: Path, within: float = 120) -> dict:
    """The next flow run of a deployment that the server's scheduler has made by itself.

    Runs of a deployment that another test has deleted may still stand there, years ahead.
    """
    question = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}, "deployment_id": {"any_": [deployment]}}}
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found = [run for run in ask(f"{api}/flow_runs/filter", question) if run["auto_scheduled"]]
        if found:
            return min(found, key=lambda run: run["expected_start_time"])
        time.sleep(0.2)
    pytest.fail(f"expected a scheduled run within {within:g} s: {server_log.read_text()[-3000:]}")


@contextmanager
def worker(environment: dict[str, str], pool: str, log: Path):
    """A worker; in the end it is killed with whatever it runs, as when a machine is lost."""
    command = ["-m", "prefect", "worker", "start", "--pool", pool]
    here = environment | {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    with log.open("w") as file:
        streams = [file.fileno()] * 3
        process = fork_server.start(command, environment=here, folder=str(ROOT), streams=streams)
        try:
            yield
        finally:
            # The process of a run has a session of its own, and would note that its worker is gone.
            for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()


def faults_of(server_log: Path) -> list[str]:
    """Tracebacks in a server's log, but those of a lock of SQLite that it waited for in vain: then it tries again."""
    entries = re.split(r"^(?=\d\d:\d\d:\d\d\.\d+ \||ERROR:)", server_log.read_text(), flags=re.MULTILINE)
    return [one[-3000:] for one in entries if "Traceback" in one and "database is locked" not in one]


def steps_kept(home: Path) -> int:
    """The newest step in a checkpoint of a training; 0 if there is none. Those of class means count rows."""
    files = (home / "private/checkpoints").rglob("step-*.safetensors")
    steps = (int(path.stem.removeprefix("step-")) for path in files if path.parent.name != "class-means")
    return max(steps, default=0)


def wait_until(reached, log: Path | None = None, *, within: float) -> None:
    """Wait for a condition."""
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < within, f"not within {within:g} s: {log.read_text()[-3000:] if log else ''}"
        time.sleep(0.1)


def kill_in_training(environment: dict[str, str], run: str, log: Path, *, steps: int) -> datetime:
    """Kill worker and process of a run once so many further steps are kept; gives the moment."""
    api, home = environment["PREFECT_API_URL"], settings().home
    before = steps_kept(home)
    with worker(environment, "client", log):
        wait_until(lambda: steps_kept(home) >= before + steps, log, within=300)
    killed = datetime.now(UTC)
    assert ask(f"{api}/flow_runs/{run}")["state"]["type"] == "RUNNING", "nobody was left to say that it was killed"
    return killed


def crashed_after(api: str, run: str, log: Path, *, killed: datetime) -> float:
    """Wait until a run that was killed is Crashed; gives the seconds that the server took to say so."""

    def state() -> dict[str, str]:
        return ask(f"{api}/flow_runs/{run}")["state"]

    wait_until(lambda: state()["type"] == "CRASHED", log, within=120)
    return (datetime.fromisoformat(state()["timestamp"]) - killed).total_seconds()


def tasks_of(api: str, run: str) -> Counter[tuple[str, str]]:
    """How often a task of the run stands in a state."""
    found = ask(f"{api}/task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
    return Counter((task["name"], task["state_name"]) for task in found)


def test_a_scheduled_run_that_was_killed_with_its_worker_is_crashed_retried_and_ends_in_the_same_bytes(
    server, request_of, tmp_path, in_home
):
    """Also: SQLAlchemy 2.1 made every tick of the server's scheduler raise, and no scheduled run ever started."""
    from understudy.flows.conditional_generation import conditional_generation

    api, log = server["PREFECT_API_URL"], Path(server["PREFECT_HOME"]) / "server.log"
    deployment = ask(f"{api}/deployments/name/conditional-generation/default")["id"]
    # Later than the server's scheduler looks on a busy machine; once the moment is past, the next run is tomorrow's.
    soon = (datetime.now(UTC) + timedelta(seconds=25)).isoformat()
    schedule = {"schedule": {"interval": 86400, "anchor_date": soon}, "active": True}
    request = request_of(out=str(tmp_path / "worker-out"), overrides=(*SMALL, "train.epochs=20"))
    parameters = {"request": request.model_dump(mode="json")}
    ask(f"{api}/deployments/{deployment}/schedules", [schedule | {"parameters": parameters}])
    made = scheduled_run(api, deployment, log)
    killed = kill_in_training(server, made["id"], tmp_path / "worker.log", steps=2)
    assert steps_kept(settings().home) < 60, "expected a kill amid the training"
    # What would have come of it, while the server waits for a sign of life.
    shutil.copytree(settings().home, tmp_path / "calm")
    shutil.rmtree(tmp_path / "calm/private/checkpoints")
    with in_home(tmp_path / "calm"):
        conditional_generation(request.model_copy(update={"out": str(tmp_path / "calm-out")}))
        assert len(Ledger.open().charges("ward")) == 1
    assert crashed_after(api, made["id"], log, killed=killed) < 60
    assert tasks_of(api, made["id"])["train", "Running"] == 1

    started_by_the_worker(api, "conditional-generation/default", fork_server.command("-m", "prefect.engine"))
    prefect(server, "flow-run", "retry", made["id"])
    prefect(server, "worker", "start", "--pool", "client", "--run-once")
    ended = ask(f"{api}/flow_runs/{made['id']}")
    assert ended["state"]["type"] == "COMPLETED", ended["state"]
    began, due = (datetime.fromisoformat(moment) for moment in (ended["start_time"], made["expected_start_time"]))
    assert began >= due - timedelta(seconds=2), "the run waits for its time, as exactly as the worker's clock ticks"
    assert faults_of(log) == []
    states = tasks_of(api, made["id"])
    assert states["train", "Crashed"] == states["train", "Completed"] == 1
    assert {state for _, state in states} <= {"Crashed", "Completed", "Cached"}
    assert len(Ledger.open().charges("ward")) == 1
    statement = json.loads((tmp_path / "worker-out/export/statement.json").read_text())
    assert statement["epsilon"] <= 3
    assert digests(tmp_path / "worker-out") == digests(tmp_path / "calm-out"), "as if it had never been killed"


@dataclass(frozen=True)
class LongJob:
    """A run that is killed ten times.

    Attributes:
        task: in which it is killed.
        given: fields of its request.
        before: cached tasks that end before that one begins, and how often each is there.
    """

    task: str
    given: dict[str, object]
    before: dict[str, int]


LONG_JOBS = {
    "conditional-generation": LongJob(
        "train", {"overrides": (*SMALL, "train.epochs=200", "train.checkpoint_every=1")}, {}
    ),
    # Checkpoints are 15 seconds apart.
    "trajectory-matching": LongJob(
        "distil",
        {
            "epsilon": None,
            "share_real_rows": True,
            "label_names": None,
            "samples": 4,
            "data": "sample:instructions",
            "budget": Budget(epsilon=8, delta=1e-3),
            "overrides": ("max_length=56", "experts.epochs=2", "distil.steps=15000", "distil.inner_steps=2"),
        },
        {"train-expert": 2, "select-rows": 1},
    ),
}


def assert_alike(out: Path, other: Path, *, private: bool) -> None:
    """The same bytes; but a private table names the artifact that it is of, whose name is drawn at random."""
    found, expected = digests(out), digests(other)
    if private:
        place = "export/synthetic.parquet"
        assert pq.read_table(out / place).equals(pq.read_table(other / place))
        del found[place], expected[place]
    assert found == expected
    assert len(found) > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", LONG_JOBS)
def test_ten_kills_of_worker_and_run(method, server, request_of, tmp_path, in_home):
    api, drawn, job = server["PREFECT_API_URL"], random.Random(0), LONG_JOBS[method]
    deployment = ask(f"{api}/deployments/name/{method}/default")["id"]
    request = request_of(out=str(tmp_path / "worker-out"), **job.given)
    body = {"parameters": {"request": request.model_dump(mode="json")}, "state": {"type": "SCHEDULED"}}
    run = ask(f"{api}/deployments/{deployment}/create_flow_run", body)["id"]
    for number in range(10):
        killed = kill_in_training(server, run, tmp_path / "worker.log", steps=drawn.randint(1, 40))
        assert crashed_after(api, run, tmp_path / "worker.log", killed=killed) < 60
        if number == 0:
            shutil.copytree(settings().home, tmp_path / "calm")
        prefect(server, "flow-run", "retry", run)
    prefect(server, "worker", "start", "--pool", "client", "--run-once", within=1500)
    states = tasks_of(api, run)
    assert ask(f"{api}/flow_runs/{run}")["state"]["type"] == "COMPLETED"
    assert (states[job.task, "Crashed"], states[job.task, "Completed"], states[job.task, "Running"]) == (10, 1, 0)
    assert {name: states[name, "Completed"] for name in job.before} == job.before, "what had ended was found again"
    assert len(Ledger.open().charges("ward")) == 1

    shutil.rmtree(tmp_path / "calm/private/checkpoints")
    with in_home(tmp_path / "calm"):
        load(registry.get(method).flow)(request.model_copy(update={"out": str(tmp_path / "calm-out")}))
    assert_alike(tmp_path / "worker-out", tmp_path / "calm-out", private=request.epsilon is None)


def introduce(client: dict[str, str], server: dict[str, str]) -> None:
    """Each zone is told the other's public key, as an administrator does it."""

    def keys(environment: dict[str, str], *words: str) -> str:
        (key,) = json.loads(tool("understudy.flows.cli", environment, "keys", *words, "--json")).values()
        return key

    for one, other in ((client, server), (server, client)):
        keys(one, "trust", keys(other, "show"))


@contextmanager
def worker_of_the_server_zone(environment: dict[str, str], home: Path, tracking: Path):
    """A worker with a home of its own, as on another machine; only the exchange store is shared."""
    here = environment | {
        "UNDERSTUDY_ZONE": "server",
        "UNDERSTUDY_HOME": str(home),
        "UNDERSTUDY_MLFLOW_URI": f"sqlite:///{home / 'mlflow.db'}",
        "HF_DATASETS_CACHE": str(home / "datasets"),
        "TRITON_CACHE_DIR": str(home / "triton"),
    }
    home.mkdir(mode=0o700)
    shutil.copy(tracking, home / "mlflow.db")
    introduce(environment | {"UNDERSTUDY_ZONE": "client"}, here)
    with worker(here, "server", home / "worker.log"):
        yield


def started_by_the_worker(api: str, deployment: str, command: str) -> None:
    """Workers start this command for each run of a deployment: `python -m prefect.engine`, which imports for seconds.

    Such a process shares nothing but imports with another. A scheduled run's first is what a worker starts by itself.
    """
    found = ask(f"{api}/deployments/name/{deployment}")["id"]
    ask(f"{api}/deployments/{found}", {"job_variables": {"command": command}}, method="PATCH")


def holding(folder: Path, texts: list[str]) -> list[Path]:
    """The files of a folder that hold one of the texts, as it is or as JSON writes it."""
    wanted = {form for text in texts for form in (text.encode(), json.dumps(text)[1:-1].encode())}
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return [path for path, content in files.items() if any(text in content for text in wanted)]


def test_a_worker_evaluates_any_table_and_the_report_goes_with_its_source(server, data, private_rows, tmp_path):
    from understudy.flows.evaluate import evaluate

    record = {"name": "ward", "unit": "example", "relation": "replace_special"}
    Ledger.open().register(SourceRecord(**record, epsilon=8, delta=1e-4, n=private_rows.num_rows))
    Ledger.open().register_rows("ward", row_digests(private_rows.select(["text"])))
    test = tmp_path / "test.parquet"
    unseen = [f"{text} and came again" for text in private_rows["text"].to_pylist()]
    pq.write_table(private_rows.set_column(0, "text", pa.array(unseen)).slice(0, private_rows.num_rows // 2), test)
    request = EvaluateRequest(synthetic=str(data), real=str(data), test=str(test), out=str(tmp_path / "out"))
    started_by_the_worker(server["PREFECT_API_URL"], "evaluate/default", fork_server.command("-m", "prefect.engine"))
    parameters = json.dumps({"request": request.model_dump(mode="json")})
    prefect(server, "deployment", "run", "evaluate/default", "--params", parameters)
    prefect(server, "worker", "start", "--pool", "client", "--run-once")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.json", "sources.json"]
    evaluate(request.model_copy(update={"out": str(tmp_path / "here")}))
    there, here = ((tmp_path / place / "report.json").read_bytes() for place in ("out", "here"))
    assert there == here
    assert sorted(purge_source("ward")["evaluation_reports"]) == [str(tmp_path / "here"), str(tmp_path / "out")]


# Six flow runs, each in a process of its own, one after the other.
@pytest.mark.timeout(1800)
def test_two_zones_make_the_artifacts_of_one_and_the_server_sees_no_private_text(
    server, request_of, tmp_path, empty_tracking_store, fixed_root_key
):
    Ledger.open()  # founds it here, where its root key is fixed
    rows = generate("clients")
    given = {"data": "sample:clients", "label_names": None, "samples": 8}
    given |= {"delta": 1e-3, "budget": Budget(epsilon=8, delta=0.02)}
    request = request_of(**given, overrides=ROUNDS, out=str(tmp_path / "apart-out"))
    for deployment in (SERVER.deployment, "preference-optimization/default"):
        started_by_the_worker(server["PREFECT_API_URL"], deployment, fork_server.command("-m", "prefect.engine"))
    parameters = json.dumps({"request": request.model_dump(mode="json")})
    prefect(server, "deployment", "run", "preference-optimization/default", "--params", parameters)
    there = tmp_path / "server-home"
    with worker_of_the_server_zone(server, there, empty_tracking_store):
        prefect(
            server | {"UNDERSTUDY_ZONE": "client"}, "worker", "start", "--pool", "client", "--run-once", within=1500
        )
    assert (tmp_path / "apart-out/internal/run.json").exists(), (there / "worker.log").read_text()[-3000:]
    apart = read_record(tmp_path / "apart-out")

    texts = rows["text"].to_pylist()
    assert holding(settings().private_root, texts), "the search finds the rows where they are"
    assert holding(Path(server["PREFECT_HOME"]), ["preference-optimization-server"]), "the database holds the flow runs"
    for folder in (there, Path(server["PREFECT_HOME"]), Path(settings().exchange)):
        assert holding(folder, texts) == []
    assert not [path for path in there.rglob("*") if path.name in ("secret", "ledger.db")]
    assert not list((there / "private").glob("artifacts/*"))
    steps = list((there / "private/results").iterdir())
    assert len(steps) == 5, "propose and prefer, publish, and texts with and without the adapter"

    from understudy.flows.preference_optimization import preference_optimization

    preference_optimization(request_of(**given, overrides=ROUNDS, out=str(tmp_path / "here-out")))
    here = read_record(tmp_path / "here-out")
    assert (here.released, here.synthetic) == (apart.released, apart.synthetic), "made again here, with the same bytes"
    assert here.metrics == apart.metrics, "scores and measures were found again"
    assert len(Ledger.open().charges("ward")) == 1


def test_a_paused_run_is_left_alone_although_it_sent_heartbeats_after_the_event_of_its_state(server, monkeypatch):
    """A task that has begun ends first, and only then the run leaves its process."""
    monkeypatch.setenv("PREFECT_API_URL", server["PREFECT_API_URL"])
    monkeypatch.setenv("UNDERSTUDY_HEARTBEAT_S", "1")
    paused = []

    @flow(name="paused")
    def pause() -> None:
        with beating(), get_client(sync_client=True) as client:
            paused.append(FlowRunContext.get().flow_run.id)
            state = client.set_flow_run_state(paused[0], Paused(timeout_seconds=600)).state
            time.sleep(2.5)
            raise Pause(state=state)

    with suppress(Pause):
        pause()
    quiet = time.monotonic()
    while time.monotonic() - quiet < 15:
        state = ask(f"{server['PREFECT_API_URL']}/flow_runs/{paused[0]}")["state"]
        assert state["type"] == "PAUSED", state["message"]
        time.sleep(0.5)


ASLEEP = """
from prefect import flow
from prefect.context import FlowRunContext
from understudy.tasks.engine.heartbeat import beating

def asleep():
    with beating():
        pipe.send(str(FlowRunContext.get().flow_run.id))
        pipe.recv()

flow(asleep, name="asleep", persist_result=False)()
"""


def test_a_run_that_was_crashed_while_it_stood_still_says_that_it_lives_and_completes(server, monkeypatch):
    """As when a laptop sleeps, or its server was away: what is seen as Crashed computes, and would be run twice."""
    api, log = server["PREFECT_API_URL"], Path(server["PREFECT_HOME"]) / "server.log"
    monkeypatch.setenv("PREFECT_API_URL", api)
    monkeypatch.setenv("UNDERSTUDY_HEARTBEAT_S", "1")
    process, pipe = forked.start(ASLEEP)
    run = pipe.recv()

    def state() -> str:
        return ask(f"{api}/flow_runs/{run}")["state_name"]

    def beats() -> int:
        mine = {"event": {"name": [EVENT]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
        return ask(f"{api}/events/filter", {"filter": mine})["total"]

    wait_until(lambda: beats() > 0, log, within=60)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: state() == "Crashed", log, within=60)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: state() == "Running", log, within=30)
    pipe.send("go on")
    assert process.wait() == 0
    assert state() == "Completed"


def attempt(environment: dict[str, str], *words: str) -> str:
    """What an attempt of the flow that is killed inside another says."""
    script = Path(__file__).with_name("killed_inner_flow.py")
    command = [sys.executable, str(script), *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=120).stdout


def test_what_a_killed_attempt_began_below_its_own_flow_is_crashed_at_the_next(server):
    """As the runs of a comparison or an audit are; a run of a deployment below it has a process of its own."""
    api = server["PREFECT_API_URL"]
    run = attempt(server).strip()
    (inner,) = ask(f"{api}/flow_runs/filter", {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}})
    assert (inner["state_name"], tasks_of(api, inner["id"])) == ("Running", {("step", "Running"): 1})
    deployment = ask(f"{api}/deployments/name/{SERVER.deployment}")["id"]
    body = {
        "parent_task_run_id": inner["parent_task_run_id"],
        "state": {"type": "PENDING"},
        "parameters": {"order": {}},
    }
    apart = ask(f"{api}/deployments/{deployment}/create_flow_run", body | {"enforce_parameter_schema": False})["id"]
    for one, state in ((apart, "RUNNING"), (run, "CRASHED"), (run, "SCHEDULED")):
        ask(f"{api}/flow_runs/{one}/set_state", {"state": {"type": state}, "force": True})
    assert attempt(server, run).strip() == run
    assert ask(f"{api}/flow_runs/{run}")["state_name"] == "Completed"
    assert ask(f"{api}/flow_runs/{inner['id']}")["state_name"] == "Crashed"
    assert tasks_of(api, inner["id"]) == {("step", "Crashed"): 1}
    assert ask(f"{api}/flow_runs/{apart}")["state_name"] == "Running"


def test_a_run_whose_process_never_began_is_crashed(deployed, never_begun):
    """Last, since it takes a minute and a half from when the run was taken, while the other tests run."""
    api, log = deployed["PREFECT_API_URL"], Path(deployed["PREFECT_HOME"]) / "server.log"
    wait_until(lambda: ask(f"{api}/flow_runs/{never_begun}")["state"]["type"] == "CRASHED", log, within=120)
    found = ask(f"{api}/flow_runs/{never_begun}")
    assert (found["state"]["type"], found["run_count"]) == ("CRASHED", 0)


def test_a_run_that_nobody_is_left_to_cancel_is_cancelled_and_can_be_retried(deployed, never_cancelled):
    """Among the last, as the one before."""
    api, log = deployed["PREFECT_API_URL"], Path(deployed["PREFECT_HOME"]) / "server.log"
    wait_until(lambda: ask(f"{api}/flow_runs/{never_cancelled}")["state"]["type"] == "CANCELLED", log, within=120)
    prefect(deployed, "flow-run", "retry", never_cancelled)
    assert ask(f"{api}/flow_runs/{never_cancelled}")["state"]["type"] == "SCHEDULED"
