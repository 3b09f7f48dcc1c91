"""What is looked at before a charge: each check finds what is well, and says in one sentence what is not."""

import contextlib
import shutil
import sqlite3
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
import torch
from bound_by_modes import be_bound_by_modes
from forked import called
from fsspec.implementations.memory import MemoryFileSystem
from lasting_store import LastingFileSystem
from tests_support import write_random_model

from understudy.errors import InputError
from understudy.models.loading import load_model
from understudy.runs.checks import generation as drawing
from understudy.runs.checks import prefect_server as prefect
from understudy.runs.checks import stores
from understudy.runs.checks.before_charge import before_charge, checks
from understudy.runs.checks.devices import gpu
from understudy.runs.checks.generation import generation
from understudy.runs.checks.prefect_server import gpu_limit, prefect_server
from understudy.runs.checks.stores import exchange_store, private_store
from understudy.runs.checks.tracking import tracking
from understudy.runs.folders import probe_folder, try_folder
from understudy.settings import settings


@contextlib.contextmanager
def answering(statuses: dict[str, int], delay_s: float = 0.0, first: tuple[int, ...] = ()):
    """An HTTP server of this test: path -> status, 404 for others, but `first` of all these; gives its address."""
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            time.sleep(delay_s)
            status = first[len(seen) - 1] if len(seen) <= len(first) else statuses.get(self.path, 404)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(drawing, "_GENERATED", set())
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", "no-such-prefect-home")


def test_a_folder_that_is_not_there_is_tried_and_not_left_behind(tmp_path):
    out = tmp_path / "results" / "of" / "today"
    assert try_folder(out) == "writable"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    assert try_folder(tmp_path / "out") == "writable"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize("place", ["/proc/out", "/proc/self/out/deeper", "file/out", "n" * 300])
def test_a_folder_that_cannot_be_made_is_refused(place, tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(InputError, match=r"--out .*choose another"):
        try_folder(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_system_that_closes_nothing_is_refused(tmp_path, monkeypatch):
    """Some mounts give every file one mode: the umask stands in for them, by opening what is made."""
    made = Path.mkdir
    monkeypatch.setattr(Path, "mkdir", lambda self, mode=0o777, **rest: (made(self, mode, **rest), self.chmod(0o777)))
    assert not probe_folder(tmp_path / "out")
    with pytest.raises(InputError, match="mode 0700"):
        try_folder(tmp_path / "out")


def test_stores_are_written_and_left_as_they_were(home):
    assert private_store() == "writable, mode 0700"
    assert exchange_store() == str(home / "exchange")
    assert list((home / "exchange").iterdir()) == []
    assert list((home / "private/artifacts").iterdir()) == []


class Hanging(MemoryFileSystem):
    protocol = "hanging"

    def pipe_file(self, path, value, **_):
        time.sleep(3)


class Refusing(MemoryFileSystem):
    protocol = "refusing"

    def pipe_file(self, path, value, **_):
        raise PermissionError("access denied")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(LastingFileSystem, None), (Hanging, "no answer within 0.5 seconds"), (Refusing, "access denied")],
)
def test_an_exchange_store_behind_a_url_takes_an_object(kind, expected, monkeypatch):
    fsspec.register_implementation(kind.protocol, kind, clobber=True)
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", f"{kind.protocol}://bucket-{kind.protocol}/store")
    if kind is Hanging:
        monkeypatch.setattr(stores, "PATIENCE_S", 0.5)
    if expected is None:
        assert exchange_store() == "lasting://bucket-lasting/store"
        assert LastingFileSystem().find("/bucket-lasting") == [], "what was written is removed"
    else:
        with pytest.raises(InputError, match=expected):
            exchange_store()


def test_an_exchange_store_that_cannot_be_written_is_refused(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", "/proc/self")
    with pytest.raises(InputError, match="UNDERSTUDY_EXCHANGE"):
        exchange_store()


def test_a_tracking_file_that_is_not_there_yet_is_not_made(home):
    assert tracking().startswith("sqlite:///")
    assert not (home / "mlflow.db").exists()


def test_a_tracking_file_takes_a_write_and_keeps_none(home):
    settings()
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as connection:
        connection.execute("create table runs (id integer)")
    before = (home / "mlflow.db").read_bytes()
    tracking()
    assert (home / "mlflow.db").read_bytes() == before


def refused_for(place: str) -> None:
    """In a process that the mode of a file binds."""
    be_bound_by_modes()
    with pytest.raises(InputError, match=rf"UNDERSTUDY_MLFLOW_URI=sqlite.*that MLflow can write, found.*{place}"):
        tracking()


@pytest.mark.parametrize(
    ("closed", "told"), [("mlflow.db", "readonly database"), ("mlflow.db.lock", "mlflow.db.lock is not writable")]
)
def test_a_tracking_file_of_another_user_is_refused(closed, told, home):
    """A database that may only be read took the beginning of a write, and so passed; then the run failed."""
    settings()
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as connection:
        connection.execute("create table runs (id integer)")
    (home / "mlflow.db.lock").touch()
    tracking()
    (home / closed).chmod(0o400)
    assert called(refused_for, told) == 0


def test_a_tracking_file_that_is_none_is_refused(home):
    settings()
    (home / "mlflow.db").write_text("not a database, " * 100)
    with pytest.raises(InputError, match=r"UNDERSTUDY_MLFLOW_URI=sqlite.*not a database"):
        tracking()


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("sqlite:////proc/self/mlflow.db", "No such file"),
        ("sqlite:////proc/self/status/mlflow.db", "UNDERSTUDY_MLFLOW_URI"),
        (f"{NOBODY}/", "refused"),
        ("postgresql+psycopg://me:hidden@127.0.0.1:9/mlflow?connect_timeout=2", "OperationalError"),
        ("postgresql+psycopg://127.0.0.1:9/mlflow?connect_timeout=2&password=hidden", "OperationalError"),
        ("http://me:hidden@127.0.0.1:9/", "refused"),
        ("http://127.0.0.1:9/?token=hidden", "refused"),
        ("http://me:hidden@127.0.0.1:nine/", "an address that is none"),
    ],
)
def test_a_tracking_place_that_does_not_answer_is_refused_without_its_password(uri, expected, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", uri)
    with pytest.raises(InputError, match=expected) as refused:
        tracking()
    assert "hidden" not in str(refused.value)
    assert "UNDERSTUDY_MLFLOW_URI" in str(refused.value)


@pytest.mark.parametrize(("status", "fine"), [(200, True), (500, False)])
def test_an_mlflow_server_is_asked_for_its_health(status, fine, monkeypatch):
    with answering({"/health": status}) as (address, seen):
        monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", address)
        if fine:
            assert tracking() == address
        else:
            monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", address.replace("://", "://me:swordfish@"))
            with pytest.raises(InputError, match="500") as refused:
                tracking()
            assert "swordfish" not in str(refused.value)
        assert [path for path, _ in seen] == ["/health"]


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        ({"TOKEN": "swordfish"}, "Bearer swordfish"),
        ({"USERNAME": "me", "PASSWORD": "swordfish"}, "Basic bWU6c3dvcmRmaXNo"),
        ({"USERNAME": "me", "PASSWORD": "swordfish", "TOKEN": "other"}, "Basic bWU6c3dvcmRmaXNo"),
        ({"USERNAME": "me"}, None),
    ],
)
def test_an_mlflow_server_gets_the_credentials_that_mlflow_would_send(credentials, expected, monkeypatch):
    for part, value in credentials.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{part}", value)
    with answering({"/health": 200}) as (address, seen):
        monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", address)
        assert tracking() == address
        assert seen == [("/health", expected)]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_a_fault_only_of_credentials_that_were_given(status, monkeypatch):
    with answering({"/health": status}) as (address, _):
        monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", address)
        assert tracking() == address, "MLflow's client may find some elsewhere"
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "swordfish")
        with pytest.raises(InputError, match=str(status)) as refused:
            tracking()
    assert "swordfish" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "found"),
    [("file:///tmp/mlruns", "'file'"), ("mlruns", "'a path'"), ("nosuch://me:hidden@host", "'nosuch'")],
)
def test_a_tracking_place_of_another_kind_is_told_the_kinds_there_are(uri, found, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", uri)
    with pytest.raises(InputError, match=rf"UNDERSTUDY_MLFLOW_URI=.*sqlite:///.*postgresql.*found {found}") as refused:
        tracking()
    assert "hidden" not in str(refused.value)


def test_each_zone_looks_at_the_places_it_writes(home, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_SERVER_MLFLOW_URI", "sqlite:////proc/self/mlflow.db")
    client = f"sqlite:///{home / 'mlflow.db'}"
    for zone in ("both", "server"):
        monkeypatch.setenv("UNDERSTUDY_ZONE", zone)
        with pytest.raises(InputError, match="UNDERSTUDY_SERVER_MLFLOW_URI"):
            tracking()
    monkeypatch.setenv("UNDERSTUDY_ZONE", "client")
    assert tracking() == client
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", "sqlite:////proc/self/mlflow.db")
    monkeypatch.setenv("UNDERSTUDY_SERVER_MLFLOW_URI", client)
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert tracking() == client
    monkeypatch.delenv("UNDERSTUDY_SERVER_MLFLOW_URI")
    with pytest.raises(InputError, match="UNDERSTUDY_MLFLOW_URI"):
        tracking()


def test_the_server_zone_has_no_private_store_to_look_at(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert "private store" not in checks(out=None, base=lambda: pytest.fail("not asked for"))


def test_no_prefect_server_is_no_fault():
    assert "temporary" in prefect_server()


@pytest.mark.parametrize("status", [200, 401, 500])
def test_a_prefect_server_lets_us_in(status, monkeypatch):
    with answering({"/api/health": status}) as (address, seen):
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        monkeypatch.setenv("PREFECT_API_KEY", "a key")
        if status == 200:
            assert prefect_server() == f"server {address}/api"
        else:
            with pytest.raises(InputError, match=str(status)):
                prefect_server()
        assert seen == [("/api/health", "Bearer a key")]


def test_a_prefect_server_of_the_active_profile_that_does_not_answer_is_refused(monkeypatch, tmp_path):
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect/profiles.toml").write_text(
        f'active = "work"\n[profiles.work]\nPREFECT_API_URL = "{NOBODY}/api"\n[profiles.other]\n'
    )
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    with pytest.raises(InputError, match=rf"PREFECT_API_URL={NOBODY}/api: .*unset PREFECT_API_URL"):
        prefect_server()
    monkeypatch.setenv("PREFECT_PROFILE", "other")
    assert "temporary" in prefect_server()


def test_a_prefect_server_that_is_busy_is_waited_for_longer_than_others(monkeypatch):
    """As where many runs of a worker begin at once: the server is there, and its own client waits for it, too."""
    monkeypatch.setattr(prefect, "PATIENCE_S", 0.6)
    with answering({"/api/health": 200}, delay_s=1.5) as (address, _):
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        assert prefect_server() == f"server {address}/api"


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_prefect_server_that_says_it_is_busy_is_asked_again(monkeypatch, status):
    with answering({"/api/health": 200}, first=(status, status)) as (address, seen):
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        assert prefect_server() == f"server {address}/api"
        assert [path for path, _ in seen] == ["/api/health"] * 3


def test_a_limit_that_the_server_does_not_tell_of_is_not_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(prefect, "BUSY_S", 0.5)
    with answering({"/api/v2/concurrency_limits/gpu": 503}) as (url, _), pytest.raises(InputError) as refused:
        gpu_limit(f"{url}/api")
    assert "503" in str(refused.value)
    assert "prefect gcl" not in str(refused.value)


def test_a_server_that_does_not_end_its_answer_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(prefect, "BUSY_S", 0.2)
    with answering({"/api/health": 200}, delay_s=60) as (address, _):
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        began = time.monotonic()
        with pytest.raises(InputError, match=r"timed out.*set-concurrency-limit"):
            prefect_server()
        assert time.monotonic() - began < 30


def test_cuda_that_is_not_there_is_refused(monkeypatch):
    assert "CPU" in gpu()
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    monkeypatch.setenv("UNDERSTUDY_DEVICES", "0,99")
    with pytest.raises(InputError, match=r"device 99, torch finds \d+"):
        gpu()


def test_a_base_model_draws_two_texts_once_per_process(model_folder, monkeypatch):
    base = load_model(model_folder)
    assert generation(base) == "random draws texts"
    monkeypatch.setattr(base.model, "forward", None)
    monkeypatch.setattr(base.model.base_model, "forward", None)
    assert generation(base) == "random draws texts", "looked at again"


def test_texts_are_drawn_without_the_tokens_that_no_run_draws(model_folder, monkeypatch):
    """A special token that is by far the likeliest is not drawn; a model that can draw nothing else is refused."""
    base = load_model(model_folder)
    pad, eos = base.tokenizer.pad_token_id, base.tokenizer.eos_token_id
    assert pad != eos
    drawn, finite = [], base.model.lm_head.forward

    def likely(states):
        logits = finite(states)
        logits[..., pad] = 1e4
        return logits

    monkeypatch.setattr(base.model.lm_head, "forward", likely)
    monkeypatch.setattr(base.tokenizer, "decode", drawn.append)
    assert generation(base) == "random draws texts"
    assert [token for tokens in drawn for token in tokens if token != eos]
    assert not [token for tokens in drawn for token in tokens if token == pad]


def test_scores_that_are_not_finite_are_refused(model_folder):
    base = load_model(model_folder)
    with torch.no_grad():
        base.model.transformer.ln_f.weight.fill_(3e38)
        base.model.transformer.ln_f.bias.fill_(3e38)
    with pytest.raises(InputError, match="finite scores"):
        generation(base)


def test_a_model_that_loads_and_cannot_compute_is_refused(model_folder, tmp_path):
    folder = Path(shutil.copytree(model_folder, tmp_path / "heads"))
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"n_head": 2', '"n_head": 3'))
    with pytest.raises(InputError, match=r"model='heads'"):
        generation(load_model(folder))


def test_the_first_check_that_fails_is_told_and_all_pass_on_a_sound_machine(model_folder, tmp_path, monkeypatch):
    base = load_model(model_folder)
    before_charge(tmp_path / "out", base)
    names = list(checks(out=None, base=lambda: base))
    assert names == ["private store", "exchange store", "tracking", "prefect", "gpu", "generation"]
    monkeypatch.setenv("PREFECT_API_URL", NOBODY)
    with pytest.raises(InputError, match="PREFECT_API_URL"):
        before_charge(tmp_path / "out", base)
    assert not (tmp_path / "out").exists()
