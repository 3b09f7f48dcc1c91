import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from forked import called

from understudy import settings as settings_module
from understudy.errors import InputError
from understudy.settings import (
    Settings,
    checkout_root,
    prepare_environment,
    private_directory,
    settings,
    unknown_variables,
    unread_tracking,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_home_and_private_roots_are_closed_to_others(home):
    now = settings()
    roots = [now.private_root, now.results_root, now.checkpoints_root, now.temporary_root]
    assert now.home == home
    assert {mode(path) for path in [home, *roots]} == {0o700}
    assert all(home in root.parents for root in roots)


def test_private_root_opened_by_somebody_is_closed_again(home):
    settings().private_root.chmod(0o755)
    assert mode(settings().private_root) == 0o700


def test_filled_open_home_is_refused_and_says_how_to_mend(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "photo.jpg").write_bytes(b"x")
    shared.chmod(0o755)
    monkeypatch.setenv("UNDERSTUDY_HOME", str(shared))
    with pytest.raises(InputError, match=f"found mode 0755; run: chmod 700 {shared}"):
        settings()
    shared.chmod(0o700)
    assert settings().home == shared


def test_empty_open_home_is_closed(tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    empty.chmod(0o777)
    monkeypatch.setenv("UNDERSTUDY_HOME", str(empty))
    settings()
    assert mode(empty) == 0o700


def test_a_home_in_a_path_that_a_url_cannot_name_is_refused(tmp_path, monkeypatch):
    """SQLite would be told the path up to the question mark, and the ledger would lie outside of the home."""
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "what?" / "home"))
    with pytest.raises(InputError, match=r"^UNDERSTUDY_HOME: .*question mark.*rename") as refused:
        settings()
    assert "UNDERSTUDY_LEDGER_URL" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UNDERSTUDY_LEDGER_URL", f"sqlite:///{tmp_path}/what?/ledger.db")
    with pytest.raises(InputError, match=r"^UNDERSTUDY_LEDGER_URL: .*question mark"):
        settings()
    monkeypatch.setenv("UNDERSTUDY_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db?timeout=9")
    assert settings().ledger_url.endswith("?timeout=9")


def test_home_that_cannot_be_a_directory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(InputError, match=r"file/home.*set UNDERSTUDY_HOME"):
        settings()
    with pytest.raises(InputError, match=r"file: .*set UNDERSTUDY_HOME"):
        private_directory(tmp_path / "file")


def test_of_a_home_that_cannot_be_written_another_one_is_not_advised_without_a_word_of_its_ledger(home, monkeypatch):
    """In another home every budget is unspent."""
    settings()
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InputError, match=rf"{home}: not writable; fix its permissions.* only if no budget was spent"):
        settings()


def refused_as_another_users() -> None:
    """In a process of its own, which nobody else's folder is open to, even if the tests are root's."""
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    with pytest.raises(InputError, match=r"of your own, found /usr of user root: .*run as that user") as refused:
        settings()
    assert "only if no budget was spent" in str(refused.value)
    assert "chmod" not in str(refused.value)


def test_a_home_of_another_user_is_told_as_such(monkeypatch):
    """Its permissions were blamed; opened up, it was refused for being open, and only its owner can close it."""
    monkeypatch.setenv("UNDERSTUDY_HOME", "/usr")
    assert called(refused_as_another_users) == 0


def test_checkout_is_recognised_by_pyproject_and_artifacts(tmp_path):
    package = tmp_path / "src" / "understudy"
    package.mkdir(parents=True)
    assert checkout_root(package) is None
    (tmp_path / "pyproject.toml").touch()
    assert checkout_root(package) is None
    (tmp_path / "artifacts").mkdir()
    assert checkout_root(package) == tmp_path


@pytest.mark.parametrize("in_checkout", [True, False])
def test_shared_stores_stand_in_the_checkout_else_at_home(in_checkout, home, tmp_path, monkeypatch):
    checkout = tmp_path / "checkout" if in_checkout else None
    monkeypatch.setattr(settings_module, "checkout_root", lambda: checkout)
    monkeypatch.delenv("UNDERSTUDY_EXCHANGE")
    monkeypatch.delenv("UNDERSTUDY_MLFLOW_URI")
    place = tmp_path / "checkout" / "artifacts" if in_checkout else home
    now = settings()
    assert now.exchange == str(place / "exchange")
    assert now.mlflow_uri == f"sqlite:///{place / 'mlflow.db'}"
    # What is private stays at home.
    assert now.ledger_url == f"sqlite:///{home / 'ledger.db'}"
    assert now.private_root.parent == home


def test_relative_paths_become_absolute_and_urls_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERSTUDY_HOME", "here")
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", "there")
    assert (settings().home, settings().exchange) == (tmp_path / "here", str(tmp_path / "there"))
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", "s3://there")
    assert settings().exchange == "s3://there"


@pytest.mark.parametrize("url", ["ledger.db", "sqlite:///ledger.db", "sqlite://", "sqlite:///:memory:"])
def test_a_ledger_is_the_same_in_every_folder(url, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_LEDGER_URL", url)
    with pytest.raises(InputError, match=r"^UNDERSTUDY_LEDGER_URL: expected sqlite:////ABSOLUTE/FILE"):
        settings()


def test_a_variable_that_nothing_reads_is_named_with_the_nearest_that_is_read(monkeypatch):
    """A misspelt home would be the default one, with a new ledger in it and every budget unspent."""
    for name in ("HOME", "LEDGER", "ENDPOINT_KEY", "HOMEE"):
        monkeypatch.setenv(f"UNDERSTUDY_{name}", "both")
    monkeypatch.setenv("understudy_zone", "both")
    homee, ledger = unknown_variables()
    assert "UNDERSTUDY_HOMEE: " in homee
    assert "the nearest is UNDERSTUDY_HOME;" in homee
    assert "UNDERSTUDY_LEDGER: " in ledger
    assert "the nearest is UNDERSTUDY_LEDGER_URL;" in ledger


def test_a_tracking_server_of_other_programs_is_told_where_runs_go_elsewhere(monkeypatch, tmp_path):
    """It is not asked: nobody named it for these runs, and it may be another machine's."""
    monkeypatch.delenv("UNDERSTUDY_MLFLOW_URI", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert unread_tracking() == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:swordfish@there:5000")
    (said,) = unread_tracking()
    assert "MLFLOW_TRACKING_URI=http://there:5000 " in said
    assert settings().mlflow_uri in said
    assert "set UNDERSTUDY_MLFLOW_URI" in said
    monkeypatch.setenv("UNDERSTUDY_SERVER_MLFLOW_URI", "http://server:5000")
    assert unread_tracking()
    monkeypatch.setenv("UNDERSTUDY_ZONE", "server")
    assert unread_tracking() == []
    monkeypatch.setenv("UNDERSTUDY_ZONE", "both")
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert unread_tracking() == []


def test_one_wrong_variable_is_told_alone(monkeypatch):
    """Other places have defaults that follow from it; those are not told as if the user had set them."""
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", "file:shared")
    monkeypatch.delenv("UNDERSTUDY_LEDGER_URL", raising=False)
    with pytest.raises(InputError, match=r"^UNDERSTUDY_EXCHANGE: [^;]*; correct or unset it$"):
        settings()


def test_an_exchange_store_is_not_named_with_a_password(monkeypatch):
    """Each reference would repeat it, to Prefect and to the other zone."""
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", "sftp://me@host/folder")
    assert settings().exchange == "sftp://me@host/folder"
    monkeypatch.setenv("UNDERSTUDY_EXCHANGE", "sftp://me:swordfish@host/folder")
    with pytest.raises(InputError, match=r"UNDERSTUDY_EXCHANGE: .*without a password.*FSSPEC_") as refused:
        settings()
    assert "swordfish" not in str(refused.value)


def test_a_tracking_database_named_by_a_relative_path_becomes_absolute(tmp_path, monkeypatch):
    """As MLflow's own documents name it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", "sqlite:///mlflow.db")
    monkeypatch.setenv("UNDERSTUDY_SERVER_MLFLOW_URI", "sqlite:///server/mlflow.db")
    assert settings().mlflow_uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert settings().server_mlflow_uri == f"sqlite:///{tmp_path}/server/mlflow.db"
    for kept in ("http://mlflow:5000", "postgresql://host/mlflow", f"sqlite:///{tmp_path}/mlflow.db"):
        monkeypatch.setenv("UNDERSTUDY_MLFLOW_URI", kept)
        assert settings().mlflow_uri == kept


def test_an_empty_variable_is_no_place(tmp_path, monkeypatch):
    """An empty home would make the working directory a home with a ledger of its own, in which nothing is spent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for name in ("HOME", "EXCHANGE", "MODELS", "MLFLOW_URI", "SERVER_MLFLOW_URI", "LEDGER_URL", "SECRET"):
        monkeypatch.setenv(f"UNDERSTUDY_{name}", "")
    now = settings()
    assert now.home == tmp_path / ".understudy"
    assert not {"home", "exchange", "ledger_url"} & now.model_fields_set, "nobody told"
    assert (now.secret, now.server_mlflow_uri) == (None, None)
    assert str(tmp_path / "elsewhere") not in (now.exchange, str(now.models))
    assert now.ledger_url == f"sqlite:///{tmp_path}/.understudy/ledger.db"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_wrong_value_names_the_variable_and_keeps_the_value_to_itself(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_ZONE", "swordfish")
    with pytest.raises(InputError, match=r"UNDERSTUDY_ZONE: .*'client', 'server' or 'both'") as caught:
        settings()
    assert "swordfish" not in str(caught.value)


def test_secret_does_not_show(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_SECRET", "swordfish")
    now = settings()
    assert now.secret is not None
    assert now.secret.get_secret_value() == "swordfish"
    assert "swordfish" not in repr(now)


def test_settings_are_read_anew_and_frozen(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_THREADS", "3")
    before = settings()
    monkeypatch.setenv("UNDERSTUDY_THREADS", "4")
    assert (before.threads, settings().threads) == (3, 4)
    with pytest.raises(ValueError, match="frozen"):
        before.threads = 5  # type: ignore[misc]


def test_device_is_decided_without_torch(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "cuda")
    assert settings().device_type == "cuda"
    monkeypatch.setenv("UNDERSTUDY_DEVICE", "auto")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert settings().device_type == "cpu"


@pytest.fixture
def clean_environment():
    """An environment without Prefect's variables, restored after the test."""
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        yield


def test_prepare_environment_keeps_what_the_user_set(home, tmp_path, clean_environment):
    os.environ |= {"OMP_NUM_THREADS": "7", "HOME": str(tmp_path)}
    del os.environ["TRITON_CACHE_DIR"]
    prepare_environment()
    assert os.environ["TRITON_CACHE_DIR"] == str(home / "private" / "triton")
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["PREFECT_RESULTS_LOCAL_STORAGE_PATH"] == str(home / "private" / "results")
    assert os.environ["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"
    assert Path(os.environ["PREFECT_HOME"]).parent == home


def test_prepare_environment_leaves_a_prefect_user_alone(clean_environment):
    os.environ["PREFECT_API_URL"] = "http://localhost:4200/api"
    prepare_environment()
    assert "PREFECT_HOME" not in os.environ


def test_the_light_modules_import_nothing_heavy():
    code = (
        "import sys, understudy.errors, understudy.settings, understudy.data.tables, understudy.artifacts;"
        "print({'torch', 'transformers', 'prefect', 'mlflow', 'datasets'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_unknown_variables_of_other_programs_do_not_disturb(monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_SOMETHING_ELSE", "1")
    assert isinstance(settings(), Settings)
