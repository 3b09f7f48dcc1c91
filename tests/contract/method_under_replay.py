"""A method from stored rows to its export folder, in a form that record-and-replay can run twice."""

import io
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from contract import preference_rows
from contract.stated_calls import noting, unstated
from dp_accounting import DpEvent
from transformers.utils import logging as transformers_logging

from understudy import artifact_store
from understudy.admission import Admission
from understudy.artifacts import ArtifactRef, read_table, write_table
from understudy.conditional_generation.config import ConditionalGenerationConfig
from understudy.conditional_generation.planning import charged_settings as charged_generation
from understudy.delivery import RunRecord, write_export
from understudy.evaluation import encoder
from understudy.gradient_matching import plan
from understudy.gradient_matching.config import GradientMatchingConfig
from understudy.gradient_matching.planning import charged_settings as charged_matching
from understudy.gradient_matching.synthesis import matching_settings, shards
from understudy.methods import AnyConfig, protected
from understudy.preference_optimization.config import PreferenceOptimizationConfig
from understudy.preference_optimization.planning import charged_settings as charged_preferences
from understudy.privacy import labels, ledger
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.events import event_from_json, event_to_json
from understudy.privacy.ledger import Ledger, SourceRecord
from understudy.privacy.mechanisms import Gateway
from understudy.privacy.replay import GatewayFactory, Observation, replay_check
from understudy.privacy.statement import build_statement, render_markdown
from understudy.requests import Budget
from understudy.tasks import conditional_generation, delivery, gradient_matching, preference_optimization
from understudy.tasks.charging import charge, settle
from understudy.tasks.delivery import statement_facts
from understudy.tasks.progress import Reporter
from understudy.tasks.ticket import Ticket

LABEL_NAMES = ("negative", "positive", "rare")
ROWS = 24
EPSILON, DELTA = 8.0, 1e-3
BASE_TEXTS = tuple(f"a {'dull' if i % 2 else 'bright'} little film number {i} with {i % 5} songs" for i in range(ROWS))
BASE_LABELS = tuple(1 - i % 2 for i in range(ROWS))

Rows = tuple[tuple[str | None, ...], tuple[int | None, ...]]
AnyRows = Rows | preference_rows.Columns
Pair = tuple[str, int, Rows, Rows]


def changed(slot: int, text: str | None, label: int | None) -> Rows:
    """The base rows with one slot changed."""
    texts, numbers = list(BASE_TEXTS), list(BASE_LABELS)
    texts[slot], numbers[slot] = text, label
    return tuple(texts), tuple(numbers)


def neighbours(slots) -> Iterator[Pair]:
    """(kind, slot, D, D'): a record of each kind against the null record in its slot."""
    for slot in slots:
        null = changed(slot, None, None)
        yield "plain", slot, (BASE_TEXTS, BASE_LABELS), null
        yield "extreme", slot, changed(slot, "zzyzx " * 200, 0), null
        yield "empty", slot, changed(slot, "", 0), null
        yield "rare class", slot, changed(slot, BASE_TEXTS[slot], 2), null
        yield "all long", slot, all_long(), all_long(slot)


def all_long(null: int | None = None) -> Rows:
    """Rows that are all longer than what is read, so that nothing is padded but the null row."""
    texts = [None if slot == null else f"{text} " * 20 for slot, text in enumerate(BASE_TEXTS)]
    return tuple(texts), tuple(None if slot == null else label for slot, label in enumerate(BASE_LABELS))


def unrelated() -> Rows:
    """Rows of the same number with wholly different content, longer and of one class."""
    return tuple("quux " * (5 + i) for i in range(ROWS)), (0,) * ROWS


def small_config(model: Path, **given) -> ConditionalGenerationConfig:
    """20 steps on a random two-layer model."""
    return ConditionalGenerationConfig.model_validate(
        {
            "model": str(model),
            "samples": 6,
            "class_sizes": "as_in_data",
            "class_sizes_share": 0.2,
            "lora": {"rank": 2},
            "discriminator": {"width": 8},
            "train": {"max_length": 24, "batch_size": 12, "epochs": 10, "micro_batch": 8, "l2_clip_norm": 0.1},
            "generate": {"sampling": {"max_new_tokens": 8}, "batch_size": 8},
            **given,
        }
    )


def small_matching(model: Path, **given) -> GradientMatchingConfig:
    """Two rounds for seven texts in shards and batches that do not fill up; `given` adds to a section's settings."""
    data = {
        "model": str(model),
        "samples": 4,
        "public_seed": 3,
        "max_length": 16,
        "length": 5,
        "verbalizer": {"template": " In short,", "words": {"negative": "bad", "positive": "good", "rare": "odd"}},
        "target": {"kind": "sketch", "sketch_dimension": 64, "l2_clip_norm": 0.1, "micro_batch": 7},
        "matching": {
            "rounds": 2,
            "inner_steps": 2,
            "learning_rate": 0.05,
            "swap_sweeps": 2,
            "swap_width": 3,
            "batch_size": 3,
            "shard_size": 5,
        },
        "projection": {"k": 10, "metric": "cosine", "instruction": "A {label} review:"},
        "filter": {"oversample": 1.5, "label_check": False, "keep_lowest": 0.9},
    }
    for name, value in given.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    return GradientMatchingConfig.model_validate(data)


@dataclass
class MethodRun:
    """What `replay_check` runs: fresh home, pinned random ids and salt, everything visible collected.

    Attributes:
        config: of the method to run.
        folder: where homes are made.
        calibrations: of earlier runs, to be reused.
        unstated: gateway calls that are not those of the run's statement, in words.
    """

    config: AnyConfig
    folder: Path
    calibrations: Path
    monkeypatch: pytest.MonkeyPatch
    unstated: list[str] = field(default_factory=list)
    _count: int = 0

    def __call__(self, rows: AnyRows, make_gateway: GatewayFactory) -> Observation:
        """Run the method once."""
        home, calls, progress = self._fresh_home(), [], []
        self._pin(home, noting(make_gateway, calls), progress)
        printed, logged = io.StringIO(), io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed), _listening(logged):
            files, charges = _run_and_export(self.config, rows, home)
        shutil.copytree(home / "understudy" / "calibrations", self.calibrations, dirs_exist_ok=True)
        shutil.rmtree(home)
        self.unstated += unstated(calls, json.loads(files["out/export/statement.json"])["mechanisms"])
        seen = {"printed": printed.getvalue(), "logged": logged.getvalue(), "progress": "\n".join(progress)}
        return Observation(visible=files | {name: text.encode() for name, text in seen.items()}, charges=charges)

    def faults(self, data: AnyRows, neighbour: AnyRows, **options) -> tuple[str, ...]:
        """All that a replay on two data sets finds."""
        report = replay_check(self, data=data, neighbour=neighbour, **options)
        return (*report.faults, *dict.fromkeys(self.unstated))

    def _fresh_home(self) -> Path:
        home = self.folder / f"home-{self._count}"
        self._count += 1
        (home / "understudy").mkdir(parents=True, mode=0o700)
        shutil.copytree(self.calibrations, home / "understudy" / "calibrations", dirs_exist_ok=True)
        return home

    def _pin(self, home: Path, make_gateway: GatewayFactory, progress: list[str]) -> None:
        """The clock, the secret and random ids would differ between any two runs, whatever the rows."""
        patch = self.monkeypatch
        # What is said once per process must be said in every run.
        transformers_logging.warning_once.cache_clear()
        patch.setenv("UNDERSTUDY_HOME", str(home / "understudy"))
        patch.setenv("UNDERSTUDY_EXCHANGE", str(home / "exchange"))
        url, noon = f"sqlite:///{home / 'understudy' / 'ledger.db'}", datetime(2000, 1, 1, 12, tzinfo=UTC)
        patch.setattr(Ledger, "open", lambda: Ledger(url, secret=b"s" * 32, clock=lambda: noon))
        patch.setattr(ledger.secrets, "token_hex", lambda size: "ab" * size)
        # The salt too, so that no test of the noise fails by chance.
        patch.setattr(ledger.secrets, "token_bytes", lambda size: b"t" * size)
        numbers = count()
        patch.setattr(artifact_store, "new_private_id", lambda: f"p{next(numbers):032x}")
        for module in (delivery, plan):
            patch.setattr(module, "epsilon_pld", _epsilon_pld)
        patch.setattr(Gateway, "live", staticmethod(lambda material, journal=None: make_gateway(material)))
        # It collects garbage after every training, which takes longer than the training.
        patch.setattr("accelerate.utils.memory.clear_device_cache", lambda **_: None)
        patch.setattr(encoder, "load_encoder", preference_rows.stand_in_encoder)
        patch.setattr(Reporter, "update", lambda self, step, total: progress.append(f"{self.name} {step} of {total}"))


def _epsilon_pld(event: DpEvent, delta: float) -> float:
    """As in the library, where every run of one plan would compute the same again for a second."""
    return _epsilon_of(event_to_json(event), delta)


@lru_cache(maxsize=64)
def _epsilon_of(event: str, delta: float) -> float:
    return epsilon_pld(event_from_json(event), delta)


@contextmanager
def _listening(text: io.StringIO) -> Iterator[None]:
    """Keep every log line; the project's own at every level."""
    handler, own = logging.StreamHandler(text), logging.getLogger("understudy")
    with ExitStack() as stack:
        for logger in _loggers_that_end_a_chain():
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        stack.callback(own.setLevel, own.level)
        own.setLevel(logging.DEBUG)
        yield


def _loggers_that_end_a_chain() -> list[logging.Logger]:
    """The root logger and every logger that keeps its records from it, as those of transformers and Prefect do."""
    known = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    return [logging.getLogger(), *(logger for logger in known if not logger.propagate)]


def _generate(config: ConditionalGenerationConfig, rows: ArtifactRef, ticket: Ticket) -> tuple[ArtifactRef, ...]:
    """The steps of the flow between charge and delivery: what was released, and the synthetic rows."""
    tasks = conditional_generation
    model = tasks.train.fn(rows, ticket, charged_generation(config), LABEL_NAMES, EPSILON, DELTA)
    settle.fn(ticket, model)
    return model, tasks.generate.fn(model, config)


def _match(config: GradientMatchingConfig, rows: ArtifactRef, ticket: Ticket) -> tuple[ArtifactRef, ...]:
    """As `_generate`."""
    tasks = gradient_matching
    target = tasks.release.fn(rows, ticket, charged_matching(config), LABEL_NAMES, EPSILON, DELTA)
    settle.fn(ticket, target)
    parts = shards(config, len(LABEL_NAMES))
    matched = [tasks.match.fn(target, matching_settings(config), tuple(part)) for part in parts]
    return target, tasks.select.fn(matched, config, LABEL_NAMES)


def _prefer(config: PreferenceOptimizationConfig, rows: ArtifactRef, ticket: Ticket) -> tuple[ArtifactRef, ...]:
    """As `_generate`."""
    tasks, fixed = preference_optimization, charged_preferences(config)
    names = LABEL_NAMES if config.variant == "central_conditional" else ()
    units = _units(read_table(rows))
    clients, last = tasks.embed_clients.fn(rows, fixed, names, units), None
    for number in range(config.rounds):
        candidates = tasks.propose["server"].fn(last, fixed, names, number)
        scores = tasks.score.fn(clients, candidates, ticket, fixed, units, EPSILON, DELTA, number)
        last = tasks.prefer["server"].fn(candidates, scores, last, fixed, number)
    model = settle.fn(ticket, tasks.publish["server"].fn(last, fixed))
    return model, tasks.write_texts["server"].fn(last, config, names)


STEPS = {"conditional-generation": _generate, "gradient-matching": _match, "preference-optimization": _prefer}


def _table(rows: AnyRows) -> pa.Table:
    columns = rows if isinstance(rows, dict) else {"text": rows[0], "label": rows[1]}
    kinds = {name: pa.int32() if name == "label" else pa.string() for name in columns}
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


def _units(table: pa.Table) -> int:
    """Slots, public: clients, or rows."""
    return len(set(table["client_id"].to_pylist())) if "client_id" in table.column_names else len(table)


def _run_and_export(config: AnyConfig, rows: AnyRows, home: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Every file that a run leaves outside the private root, and its charges."""
    book, table, guarded = Ledger.open(), _table(rows), protected(config)
    public = {
        "n": _units(table),
        "label_names": LABEL_NAMES if "label" in table.column_names else (),
        "unit": guarded.unit,
        "relation": guarded.relation,
    }
    record = SourceRecord(name="replayed", epsilon=EPSILON, delta=DELTA, **public)
    book.register(record)
    stored = write_table(table, kind="rows", label=labels.private("replayed"))
    run = Admission(
        source="replayed",
        budget=Budget(epsilon=EPSILON, delta=DELTA),
        **public,
        epsilon=EPSILON,
        delta=DELTA,
        config=config,
        train=stored,
    )
    ticket = charge.fn(stored, run, code="code", accept_new=False)
    released, synthetic = STEPS[config.method](config, stored, ticket)
    paid = book.charge(ticket.charge_id)
    facts = statement_facts(run, paid, released, restarts=0).model_copy(update={"time": "2000-01-01T00:00:00+00:00"})
    statement = build_statement(facts, charge=paid, source=record, spent=book.spent("replayed"))
    out = RunRecord(
        method=config.method,
        source="replayed",
        charge_id=ticket.charge_id,
        label_names=run.label_names,
        config=config.model_dump(mode="json"),
        released=released,
        synthetic=synthetic,
    )
    write_export(home / "out", out, statement, render_markdown(statement))
    visible = {
        f"{place}/{path.relative_to(home / place)}": path.read_bytes()
        for place in ("out", "exchange")
        for path in sorted((home / place).rglob("*"))
        if path.is_file()
    }
    hidden = {"id", "request_key", "created_at", "released_at", "key_id", "new"}
    return visible, tuple(str(entry.model_dump(exclude=hidden)) for entry in book.charges("replayed"))
