"""What statements say of audits on public rows."""

import pytest

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


def test_audits_are_kept_once_and_told_of_their_own_method_and_model(audit, tmp_path, monkeypatch):
    monkeypatch.setenv("UNDERSTUDY_HOME", str(tmp_path / "home"))
    other = audit.model_copy(update={"model_digest": "n"})
    for one in (audit, audit, other):
        keep(one)
    assert kept("some-method", "m") == [audit]
    assert kept("another", "m") == []
    (tmp_path / "home/audits/older.json").write_text("{}")
    assert kept("some-method", "n") == [other]
