"""Where things live: one place, environment variables with the prefix `UNDERSTUDY_`.

The private store, the ledger and the secret are always under the home directory (per user, mode 0700). The
exchange store and the MLflow database stand in `artifacts/` of a checkout, else under the home directory too.
"""

import difflib
import functools
import importlib.metadata
import os
import re
import stat
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from understudy.addresses import exchange_address, ledger_address, public_address, tracking_address
from understudy.cores import THREADS_WAIT, available_cores
from understudy.errors import InputError
from understudy.owner_only import close_new_files, is_own, other_owner, remedy

Zone = Literal["client", "server", "both"]
DeviceType = Literal["cpu", "cuda"]
# Deterministic matrix products on CUDA need a fixed workspace, read when CUDA starts.
CUBLAS_WORKSPACE = ":4096:8"
ENDPOINT_KEY = "UNDERSTUDY_ENDPOINT_KEY"  # of no setting: read with each request to an endpoint


def checkout_root(package: Path | None = None) -> Path | None:
    """The checkout that holds this package, recognised by `pyproject.toml` and `artifacts/` beside `src/`."""
    root = (package or Path(__file__).resolve().parent).parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "artifacts").is_dir() else None


def _shared_place(data: Mapping[str, Any]) -> Path:
    checkout = checkout_root()
    return checkout / "artifacts" if checkout else Path(data["home"])


def _user_cache() -> Path:
    """The user's folder for what can be fetched again; a relative XDG_CACHE_HOME counts as none."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"


class Settings(BaseSettings):
    """Every place and machine choice; read anew by `settings()`, never changed in flight."""

    # An empty variable says nothing: read as a path it would be the working directory.
    model_config = SettingsConfigDict(env_prefix="UNDERSTUDY_", env_ignore_empty=True, frozen=True, extra="ignore")

    home: Path = Field(
        default_factory=lambda: Path.home() / ".understudy", description="Per user, mode 0700; never shared."
    )
    exchange: str = Field(
        default_factory=lambda data: str(_shared_place(data) / "exchange"),
        description="Store of public and released artifacts: a path or an fsspec URL.",
    )
    models: Path = Field(
        default_factory=lambda: _user_cache() / "understudy" / "models",
        description="Public base models that `understudy models get` fetched, for every home of this user.",
    )
    mlflow_uri: str = Field(
        default_factory=lambda data: f"sqlite:///{_shared_place(data) / 'mlflow.db'}",
        description="MLflow tracking URI of the client zone.",
    )
    server_mlflow_uri: str | None = Field(default=None, description="MLflow tracking URI of the server zone.")
    ledger_url: str = Field(
        default_factory=lambda data: f"sqlite:///{data['home'] / 'ledger.db'}",
        description="SQLAlchemy URL of the ledger: SQLite or PostgreSQL.",
    )
    secret: SecretStr | None = Field(
        default=None,
        description="Secret of the client zone; else the file home/secret (0600).",
    )
    zone: Zone = Field(default="both", description="Which tasks this process may run.")
    zone_key: SecretStr | None = Field(
        default=None,
        description="Secret of this zone's keys, 32 characters or more; else the file home/zone-key (0600).",
    )
    trusted_key: str | None = Field(
        default=None, description="Public key of the other zone; else as told by `understudy keys trust`."
    )
    threads: int = Field(
        default_factory=available_cores,
        ge=1,
        le=1024,
        description="Threads of each torch operation; the default is what this process may use, at most 8.",
    )
    processes: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Mapped tasks that compute at once on the CPU, each in a process with `threads` threads.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Device of the tasks; auto takes CUDA where it is there.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Of frozen weights; auto takes bfloat16 for large models where the machine is fast at it.",
    )

    devices: str = Field(
        default="0",
        pattern=r"^\d{1,3}(,\d{1,3})*$",
        description="CUDA devices of runs without a Prefect server, by number: 0,1 lets two tasks compute at once.",
    )

    heartbeat_s: float = Field(
        default=15.0,
        ge=1,
        le=25,
        description="Seconds between heartbeats of a flow run; the automation of `understudy deploy` waits for four.",
    )

    @field_validator("home", "models", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return Path(os.path.abspath(value.expanduser()))

    @field_validator("home", mode="after")
    @classmethod
    def _without_question_mark(cls, value: Path) -> Path:
        # The databases in it are named by URLs, of which this would begin the query: they would lie beside the home.
        if "?" in str(value):
            raise ValueError(
                "expected a path without a question mark, where the URLs of the ledger and other databases in it would "
                "end, found one; rename the folder, or name another"
            )
        return value

    @field_validator("exchange", mode="after")
    @classmethod
    def _exchange(cls, value: str) -> str:
        return exchange_address(value)

    @field_validator("ledger_url", mode="after")
    @classmethod
    def _ledger(cls, value: str) -> str:
        return ledger_address(value)

    @field_validator("mlflow_uri", "server_mlflow_uri", mode="after")
    @classmethod
    def _tracking(cls, value: str | None) -> str | None:
        return None if value is None else tracking_address(value)

    @property
    def private_root(self) -> Path:
        """Everything private: artifacts, results, checkpoints, caches, temporary files (mode 0700)."""
        return private_directory(self.home / "private")

    @property
    def results_root(self) -> Path:
        """Results of tasks as JSON: references and public values only."""
        return private_directory(self.private_root / "results")

    @property
    def checkpoints_root(self) -> Path:
        """One directory per running or resumable task."""
        return private_directory(self.private_root / "checkpoints")

    @property
    def temporary_root(self) -> Path:
        """Temporary files of private work."""
        return private_directory(self.private_root / "tmp")

    @property
    def locks_root(self) -> Path:
        """Locks that processes of this user contend for."""
        return private_directory(self.home / "locks")

    @property
    def device_indices(self) -> tuple[int, ...]:
        """`devices` as numbers, each once."""
        return tuple(dict.fromkeys(int(index) for index in self.devices.split(",")))

    @property
    def device_type(self) -> DeviceType:
        """The device that tasks of this process run on, decided without importing torch."""
        if self.device != "auto":
            return self.device
        return "cuda" if _has_cuda() else "cpu"


def settings() -> Settings:
    """The settings of this process, read from the environment at every call.

    Raises:
        InputError: when a variable has a wrong value or the home directory cannot be used.
    """
    found = _from_environment(
        tuple(
            sorted(
                (k, os.environ.get(k, ""))
                for k in os.environ
                if k in ("HOME", "XDG_CACHE_HOME") or k.upper().startswith("UNDERSTUDY_")
            )
        ),
        _working_directory(),
    )
    _home_directory(found.home)
    return found


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        # Removed under us; it matters only to relative paths, which then fail by themselves.
        return ""


@functools.lru_cache(maxsize=4)
def _from_environment(variables: tuple[tuple[str, str], ...], directory: str) -> Settings:
    """Validate once per state of what the settings depend on; every reference asks for them."""
    try:
        return Settings()
    except ValidationError as error:
        raise InputError(_explain(error)) from None


def unknown_variables() -> list[str]:
    """Of each variable `UNDERSTUDY_*` that nothing reads, such as a misspelt one, what its name may have been.

    Such a variable is not refused: it may be of another version.
    """
    known = [*(f"UNDERSTUDY_{name.upper()}" for name in Settings.model_fields), ENDPOINT_KEY]
    ours = sorted(name for name in os.environ if name.upper().startswith("UNDERSTUDY_"))
    nearest = {name: difflib.get_close_matches(name.upper(), known, n=1, cutoff=0)[0] for name in ours}
    return [
        f"{name}: nothing reads a variable of this name; the nearest is {near}; rename or unset it"
        for name, near in nearest.items()
        if near != name.upper()
    ]


def unread_tracking() -> list[str]:
    """What is to be said where a server is named for MLflow, but not for runs of Understudy, or nothing.

    Such a server is not asked: it was named for other work, and may be another machine's.
    """
    now, others = settings(), os.environ.get("MLFLOW_TRACKING_URI")
    of_zone = {"server_mlflow_uri"} if now.zone == "server" else set()
    if not others or now.model_fields_set & ({"mlflow_uri"} | of_zone):
        return []
    return [
        f"MLFLOW_TRACKING_URI={public_address(others)} is not read: runs are recorded in "
        f"{public_address(now.mlflow_uri)}; set UNDERSTUDY_MLFLOW_URI to have them recorded elsewhere"
    ]


def private_directory(path: Path) -> Path:
    """Make `path` if it is not there and close it to other users (mode 0700), with what is made in it from now on.

    Raises:
        InputError: when it cannot be made, closed or written.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if stat.S_IMODE(path.stat().st_mode) != 0o700:
            path.chmod(0o700)
        close_new_files(path)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        raise InputError(_unusable(path, error.strerror or type(error).__name__)) from None
    if not writable:
        raise InputError(_unusable(path, "not writable"))
    return path


def prepare_environment() -> None:
    """Set what Prefect, MLflow, torch and datasets read from the environment; call it before importing them.

    Values that the user has set stay. No telemetry leaves; results and caches that may come from private rows
    go under the private root; a user who has a Prefect profile or a server of their own keeps it.
    """
    now = settings()
    wanted = {
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # The temporary server makes its database on first use, which takes longer on a busy machine.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(now.results_root),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # Prefect's own, for automations of the user's; that of `understudy deploy` goes by tasks/engine/heartbeat.py.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_DATASETS_CACHE": str(now.private_root / "datasets"),
        # Kernels that trl has compiled on a GPU: for which sizes follows from rows where nothing is noised.
        "TRITON_CACHE_DIR": str(now.private_root / "triton"),
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(now.threads),
        **THREADS_WAIT,
        "CUBLAS_WORKSPACE_CONFIG": CUBLAS_WORKSPACE,
    }
    own_prefect = "PREFECT_API_URL" in os.environ or (Path.home() / ".prefect" / "profiles.toml").exists()
    if not own_prefect:
        # A Prefect database does not downgrade, so each version gets its own.
        wanted["PREFECT_HOME"] = str(now.home / f"prefect-{_prefect_series()}")
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def device_locks() -> list[Path]:
    """The lock of each CUDA device that `UNDERSTUDY_DEVICES` names, in its order.

    A device is known by what CUDA_VISIBLE_DEVICES calls it, so that processes that see different devices under one
    number do not wait for each other.
    """
    now = settings()
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = [visible[index] if index < len(visible) else str(index) for index in now.device_indices]
    return [now.locks_root / f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', name)}.lock" for name in names]


def prefect_setting(name: str) -> str | None:
    """A Prefect setting as the user made it, from the environment or the active profile, without importing Prefect.

    >>> prefect_setting("PREFECT_NO_SUCH_SETTING") is None
    True
    """
    if name in os.environ:
        return os.environ[name] or None
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect").expanduser()
    try:
        known = tomllib.loads((home / "profiles.toml").read_text())
    except (OSError, ValueError):
        return None
    active = os.environ.get("PREFECT_PROFILE") or known.get("active")
    value = known.get("profiles", {}).get(active, {}).get(name)
    return str(value) if value else None


def _home_directory(home: Path) -> None:
    """Make `home`, or check that others cannot enter: an empty one is closed, a filled one refused."""
    try:
        mode = stat.S_IMODE(home.stat().st_mode)
        open_to_others = bool(mode & 0o077)
        if open_to_others and other_owner(home) is not None:
            raise InputError(_unusable(home, f"mode {mode:04o}"))
        if open_to_others and any(home.iterdir()):
            raise InputError(
                f"UNDERSTUDY_HOME={home}: expected a directory closed to other users (mode 0700), found mode "
                f"{mode:04o}; run: chmod 700 {home}"
            )
        if open_to_others or not os.access(home, os.W_OK | os.X_OK):
            private_directory(home)
        close_new_files(home)
    except FileNotFoundError:
        private_directory(home)
    except OSError as error:
        raise InputError(_unusable(home, error.strerror or type(error).__name__)) from None


def _unusable(path: Path, found: str) -> str:
    if (owner := other_owner(path)) is not None:
        if is_own(path.parent):
            return f"expected a directory of your own, found {path}: {found}; {remedy(path)}"
        return (
            f"expected a directory of your own, found {path} of user {owner}: a home, with its secret and its rows, is "
            "one user's, whatever others may read or write; run as that user, or have them run it; set UNDERSTUDY_HOME "
            "to a directory that you own only if no budget was spent here, for a new ledger knows of none"
        )
    return (
        f"expected a writable directory, found {path}: {found}; fix its permissions, or make its disk writable; set "
        "UNDERSTUDY_HOME to a directory that you own only if no budget was spent here, for a new ledger knows of none"
    )


def _explain(error: ValidationError) -> str:
    # The value itself may be the secret, so only the variable's name and what was expected are told.
    parts = []
    # Places that follow from a wrong one are not wrong themselves.
    found = error.errors(include_input=False, include_url=False)
    for entry in [entry for entry in found if entry["type"] != "default_factory_not_called"] or found:
        name = "UNDERSTUDY_" + "_".join(str(part) for part in entry["loc"]).upper()
        parts.append(f"{name}: {entry['msg'].removeprefix('Value error, ')}")
    return "; ".join(parts) + "; correct or unset it"


def _has_cuda() -> bool:
    """Whether this machine shows an NVIDIA device and torch was built for it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "unset") in ("", "-1") or not Path("/dev/nvidia0").exists():
        return False
    torch = sys.modules.get("torch")
    if torch is not None:
        return bool(torch.version.cuda)
    return not importlib.metadata.version("torch").endswith("+cpu")


def _prefect_series() -> str:
    return ".".join(importlib.metadata.version("prefect").split(".")[:2])
