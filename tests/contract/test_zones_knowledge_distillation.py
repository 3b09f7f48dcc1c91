"""The server zone of knowledge distillation in its own process, with keys of its own; the client's files are away."""

import io
import json
import os
from pathlib import Path

import fork_server
import pyarrow.parquet as pq
import pytest
from contract.flow_under_replay import FlowRun, smaller, without_evaluation
from contract.labelled_flow import OPTIONS
from contract.private_files import ROWS, pairs
from tests_support import SMALL_DISTILLATION, write_random_model

from understudy.artifacts.zone_keys import OwnKey
from understudy.errors import ZoneError
from understudy.flows.server_side import ServerSide
from understudy.privacy.mechanisms import Mechanisms

CLIENT, SERVER = "z" * 64, "y" * 64


@pytest.fixture(scope="module")
def server_zone(tmp_path_factory):
    """The process of the server zone: what it was given, it answers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UNDERSTUDY_")}
    folder = tmp_path_factory.mktemp("server-zone")
    (taken, asked), (answered, given) = os.pipe(), os.pipe()
    with (folder / "errors.txt").open("w") as errors:
        process = fork_server.start(
            [str(Path(__file__).with_name("server_process.py"))],
            environment=environment,
            folder=str(folder),
            streams=[taken, given, errors.fileno()],
        )
    os.close(taken)
    os.close(given)

    def ask(request: dict) -> dict:
        print(json.dumps(request), file=requests, flush=True)
        answer = answers.readline()
        assert answer, (folder / "errors.txt").read_text()[-3000:]
        return json.loads(answer)

    with open(answered) as answers:
        with open(asked, "w") as requests:
            yield ask
        process.wait()


@pytest.fixture
def apart(tmp_path, places, monkeypatch, server_zone):
    """A run whose server steps are taken in another process; gives what that process opened, step by step."""
    model = write_random_model(tmp_path / "model", positions=128)
    smaller(monkeypatch)
    without_evaluation(monkeypatch)
    settings = (*SMALL_DISTILLATION, f"professional.model={model}")
    options = {"units": ROWS, "model": str(model), "samples": 3, "overrides": settings}
    run = FlowRun("knowledge-distillation", OPTIONS | options, tmp_path, places, monkeypatch)
    opened: dict[str, list[str]] = {}
    there = tmp_path / "server"
    there.mkdir(mode=0o700)

    def ask_the_other_process(self, order, step):
        # Libraries that open files themselves pass the audit hook, so the private rows are not there to be opened.
        private = [tmp_path / "run/home", tmp_path / "run/data"]
        away = [path.with_name(f"{path.name}-away") for path in private]
        environment = {
            "UNDERSTUDY_HOME": str(there),
            "UNDERSTUDY_EXCHANGE": str(tmp_path / "run/exchange"),
            "UNDERSTUDY_ZONE": "server",
            "UNDERSTUDY_ZONE_KEY": SERVER,
            "UNDERSTUDY_TRUSTED_KEY": OwnKey("client", CLIENT.encode()).public.text,
            "TMPDIR": str(there),
            "UNDERSTUDY_THREADS": "1",
            "UNDERSTUDY_DEVICE": "cpu",
            "UNDERSTUDY_PRECISION": "float32",
        }
        for path, place in zip(private, away, strict=True):
            path.rename(place)
        try:
            done = server_zone({"environment": environment, "order": order.model_dump_json()})
        finally:
            assert not any(path.exists() for path in private), "a step of the server made a place of the client's"
            for path, place in zip(private, away, strict=True):
                place.rename(path)
        opened.setdefault(step.step, []).extend(done["opened"])
        return done["answer"]

    monkeypatch.setattr(ServerSide, "_answer_to", ask_the_other_process)
    monkeypatch.setenv("UNDERSTUDY_ZONE", "client")
    monkeypatch.setenv("UNDERSTUDY_TRUSTED_KEY", OwnKey("server", SERVER.encode()).public.text)
    return run, opened, tmp_path, there, model


def test_the_server_opens_the_bundle_and_public_files_and_no_private_row(apart, monkeypatch):
    run, opened, root, there, model = apart
    found = run(pairs(), lambda material: Mechanisms(material))
    assert opened.keys() == {"write-pairs", "improve", "tune-base"}
    every = {path for paths in opened.values() for path in paths if path.startswith(str(root))}
    allowed = (root / "run/exchange", there, model)
    stray = sorted(path for path in every if not any(Path(path).is_relative_to(place) for place in allowed))
    assert stray == []
    names = {Path(path).name for path in every if Path(path).is_relative_to(root / "run/exchange")}
    assert {"bundle.json", "payload.bin"} <= names, "what it works on is the bundle"
    rows = [text.encode() for name in ("instruction", "response") for text in pairs()[name].to_pylist()]
    written = [path for path in there.rglob("*") if path.is_file()]
    assert not [path for path in written if path.name in ("secret", "ledger.db")]
    for path in written:
        content = path.read_bytes()
        assert not any(row in content for row in rows), path
    assert not any(row.decode() in path for row in rows for path in every)

    monkeypatch.setenv("UNDERSTUDY_ZONE", "both")
    together = run(pairs(), lambda material: Mechanisms(material))
    model = "out/export/model/model.safetensors"
    assert found.visible[model] == together.visible[model], "the same bytes in one process and in two"
    # The table's file names its artifact, which has other parents where a bundle crossed.
    tables = [pq.read_table(io.BytesIO(one.visible["out/export/synthetic.parquet"])) for one in (found, together)]
    assert tables[0].equals(tables[1]), "the same rows in one process and in two"
    assert all(table.num_rows > 0 for table in tables)


def test_a_server_whose_key_the_client_does_not_know_is_not_followed(apart, monkeypatch):
    run, *_ = apart
    monkeypatch.setenv("UNDERSTUDY_TRUSTED_KEY", OwnKey("server", b"x" * 64).public.text)
    with pytest.raises((ZoneError, AssertionError), match=r"for the key|keys trust"):
        run(pairs(), lambda material: Mechanisms(material))
