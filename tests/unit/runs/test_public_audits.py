"""What statements say of audits on public rows."""

import json

import pytest

from understudy.auditing.secret_metrics import GuessedShare
from understudy.runs.audits.on_public_rows import PublicAudit, keep, kept


@pytest.fixture
def audit():
    return PublicAudit(
        method="some-method",
        model="tiny",
        model_digest="m",
        source="twin",
        unit="example",
        relation="replace_special",
        units=600,
        epsilon=2.0,
        delta=1e-4,
        canaries=100,
        confidence=0.95,
        bounds={"data": {"claim": 0.5, "positive_control": 1.25, "null_control": 0.0}},
        config_digest="c",
        code_digest="d",
    )


def test_what_differs_from_the_run_of_the_statement_is_said(audit):
    assert "compared with this run, the same settings and the same code and versions." in audit.in_words("c", "d")
    assert "compared with this run, other settings and the same code and versions." in audit.in_words("x", "d")
    assert "compared with this run, the same settings and other code and versions." in audit.in_words("c", "x")
    assert "with this noise 0.50, without noise 1.25, without a canary 0.00" in audit.in_words("c", "d")


def test_no_bound_is_told_that_was_not_proven(audit):
    close = audit.model_copy(update={"bounds": {"data": audit.bounds["data"] | {"claim": 1.9999}}})
    assert "with this noise 1.99, " in close.in_words("c", "d")


def test_the_promise_is_never_rounded_down(audit):
    said = audit.model_copy(update={"epsilon": 2.00001, "delta": 1.00004e-4}).in_words("c", "d")
    assert "at epsilon=2.00001, delta=0.000101 for one example (replace_special, PLD)" in said


def test_a_refuted_promise_is_called_so(audit):
    leaking = audit.model_copy(update={"bounds": {"data": audit.bounds["data"] | {"claim": 2.5}}})
    assert leaking.in_words("c", "d").startswith("REFUTED the promise: ")
    assert not audit.in_words("c", "d").startswith("REFUTED")


def test_an_audit_that_catches_nothing_without_noise_is_said_to_say_nothing(audit):
    blind = {name: {"claim": 0.0, "positive_control": 0.0, "null_control": 0.0} for name in ("data", "model")}
    assert "finding nothing says nothing" in audit.model_copy(update={"bounds": blind}).in_words("c", "d")
    one = {**blind, "model": blind["model"] | {"positive_control": 0.2}}
    assert "says nothing" not in audit.model_copy(update={"bounds": one}).in_words("c", "d")


def test_secrets_that_were_guessed_are_told_beside_the_control(audit):
    share = {"interval": (0.0, 0.1), "guessed": 32}
    secrets = {
        "claim": GuessedShare(rate=0.03125, **share),
        "positive_control": GuessedShare(rate=0.5, interval=(0.32, 0.68), guessed=32),
        "null_control": GuessedShare(rate=0.0, **share),
    }
    said = audit.model_copy(update={"secrets": secrets}).in_words("c", "d")
    assert "with this noise 3.1% of 32 (95% interval 0.0% to 10.0%), without noise 50.0% of 32" in said
    assert "says nothing" not in said
    blind = secrets | {"positive_control": GuessedShare(rate=0.03125, **share)}
    assert said_of(audit, blind).endswith("not told from chance, so this says nothing")


def said_of(audit, secrets):
    return audit.model_copy(update={"secrets": secrets}).in_words("c", "d")


def test_an_audit_that_was_kept_before_secrets_were_guessed_is_read_and_tells_of_none(audit, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    keep(audit)
    (path,) = (tmp_path / "home/audits").iterdir()
    older = json.loads(path.read_text())
    assert older.pop("secrets") == {}
    path.write_text(json.dumps(older))
    assert kept("some-method", "m") == [audit]
    assert "ecret" not in audit.in_words("c", "d")


def test_audits_are_kept_once_and_told_of_their_own_method_and_model(audit, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    other = audit.model_copy(update={"model_digest": "n"})
    for one in (audit, audit, other):
        keep(one)
    assert kept("some-method", "m") == [audit]
    assert kept("another", "m") == []
    (tmp_path / "home/audits/older.json").write_text("{}")
    assert kept("some-method", "n") == [other]
