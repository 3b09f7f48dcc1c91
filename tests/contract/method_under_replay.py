"""Conditional generation from stored rows to its export folder, in a form that record-and-replay can run twice."""

import io
import logging
import shutil
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from understudy.admission import RELATION, UNIT, Admission
from understudy.artifacts import write_table
from understudy.conditional_generation.config import ConditionalGenerationConfig
from understudy.conditional_generation.planning import charged_settings
from understudy.delivery import RunRecord, write_export
from understudy.privacy import labels, ledger
from understudy.privacy.ledger import Ledger, SourceRecord
from understudy.privacy.mechanisms import Gateway
from understudy.privacy.replay import Observation
from understudy.privacy.statement import build_statement, render_markdown
from understudy.requests import Budget
from understudy.tasks.charging import charge, settle
from understudy.tasks.conditional_generation import generate, train
from understudy.tasks.delivery import statement_facts

LABEL_NAMES = ("negative", "positive", "rare")
ROWS = 24
BASE_TEXTS = tuple(f"a {'dull' if i % 2 else 'bright'} little film number {i} with {i % 5} songs" for i in range(ROWS))
BASE_LABELS = tuple(1 - i % 2 for i in range(ROWS))

Rows = tuple[tuple[str | None, ...], tuple[int | None, ...]]


def changed(slot: int, text: str | None, label: int | None) -> Rows:
    """The base rows with one slot changed."""
    texts, numbers = list(BASE_TEXTS), list(BASE_LABELS)
    texts[slot], numbers[slot] = text, label
    return tuple(texts), tuple(numbers)


def neighbours(slots):
    """(kind, slot, D, D'): a record of each kind against the null record in its slot."""
    for slot in slots:
        null = changed(slot, None, None)
        yield "plain", slot, (BASE_TEXTS, BASE_LABELS), null
        yield "extreme", slot, changed(slot, "zzyzx " * 200, 0), null
        yield "empty", slot, changed(slot, "", 0), null
        yield "rare class", slot, changed(slot, BASE_TEXTS[slot], 2), null


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


def runner(config: ConditionalGenerationConfig, folder: Path, calibrations: Path, monkeypatch: pytest.MonkeyPatch):
    """The function that `replay_check` runs: fresh home, pinned random ids, everything visible collected."""
    count = iter(range(10_000))

    def run(rows: Rows, make_gateway) -> Observation:
        home = folder / f"home-{next(count)}"
        (home / "understudy").mkdir(parents=True, mode=0o700)
        shutil.copytree(calibrations, home / "understudy" / "calibrations", dirs_exist_ok=True)
        monkeypatch.setenv("UNDERSTUDY_HOME", str(home / "understudy"))
        monkeypatch.setenv("UNDERSTUDY_EXCHANGE", str(home / "exchange"))
        # The clock, the secret and random ids would differ between any two runs, whatever the rows.
        url, noon = f"sqlite:///{home / 'understudy' / 'ledger.db'}", datetime(2000, 1, 1, 12, tzinfo=UTC)
        monkeypatch.setattr(Ledger, "open", lambda: Ledger(url, secret=b"s" * 32, clock=lambda: noon))
        monkeypatch.setattr(ledger.secrets, "token_hex", lambda size: "ab" * size)
        monkeypatch.setattr(Gateway, "live", staticmethod(lambda material, journal=None: make_gateway(material)))
        captured, handler_text = io.StringIO(), io.StringIO()
        handler = logging.StreamHandler(handler_text)
        listened = _loggers_that_end_a_chain()
        for logger in listened:
            logger.addHandler(handler)
        try:
            with redirect_stdout(captured), redirect_stderr(captured):
                found, charges = _method(config, rows, home)
        finally:
            for logger in listened:
                logger.removeHandler(handler)
        shutil.copytree(home / "understudy" / "calibrations", calibrations, dirs_exist_ok=True)
        visible = found | {"printed": captured.getvalue().encode(), "logged": handler_text.getvalue().encode()}
        shutil.rmtree(home)
        return Observation(visible=visible, charges=charges)

    return run


def _loggers_that_end_a_chain() -> list[logging.Logger]:
    """The root logger and every logger that keeps its records from it, as those of transformers and Prefect do."""
    known = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    return [logging.getLogger(), *(logger for logger in known if not logger.propagate)]


def _method(config: ConditionalGenerationConfig, rows: Rows, home: Path) -> tuple[dict[str, bytes], tuple[str, ...]]:
    epsilon, delta = 8.0, 1e-3
    book = Ledger.open()
    record = SourceRecord(
        name="replayed", unit=UNIT, relation=RELATION, epsilon=epsilon, delta=delta, n=ROWS, label_names=LABEL_NAMES
    )
    book.register(record)
    table = pa.table({"text": pa.array(rows[0], pa.string()), "label": pa.array(rows[1], pa.int32())})
    stored = write_table(table, kind="rows", label=labels.private("replayed"))
    run = Admission(
        source="replayed",
        budget=Budget(epsilon=epsilon, delta=delta),
        n=ROWS,
        label_names=LABEL_NAMES,
        epsilon=epsilon,
        delta=delta,
        config=config,
        model_digest="public",
        train=stored,
    )
    ticket = charge.fn(stored, run, code="code", accept_new=False)
    model = train.fn(stored, ticket, charged_settings(config), LABEL_NAMES, epsilon, delta)
    settle.fn(ticket, model)
    synthetic = generate.fn(model, config)
    paid = book.charge(ticket.charge_id)
    facts = statement_facts(run, paid, model, restarts=0).model_copy(update={"time": "2000-01-01T00:00:00+00:00"})
    statement = build_statement(facts, charge=paid, source=record, spent=book.spent("replayed"))
    out = RunRecord(
        method=config.method,
        source="replayed",
        charge_id=ticket.charge_id,
        label_names=LABEL_NAMES,
        config=config.model_dump(mode="json"),
        released=model,
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
