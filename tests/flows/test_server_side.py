"""What the server zone gives back is followed only if it is what the step makes of its inputs."""

import contextvars
import json
import threading
from uuid import uuid4

import pytest
from prefect import flow, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Crashed

from understudy.artifacts.access import write_json
from understudy.artifacts.zone_keys import OwnKey
from understudy.errors import UnderstudyError, ZoneError
from understudy.flows.deploy import _crashing
from understudy.flows.preference_optimization import SERVER, Prefer, Propose
from understudy.flows.server_side import Signed, answered, came_back, message_of, ordered, verified
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.privacy import labels
from understudy.privacy.labels import Guarantee
from understudy.tasks.engine.heartbeat import RETRY

CONFIG = PreferenceOptimizationConfig()


def released(charge: str) -> labels.Label:
    return labels.released(
        Guarantee(
            source="diaries",
            charge_id=charge,
            unit="client",
            relation="add_or_remove_one",
            epsilon=1,
            delta=1e-6,
            accountant="pld",
        )
    )


def made(kind, label, *parents, value=0):
    return write_json(value, kind=kind, label=label, parents=parents)


@pytest.fixture
def round_(home):
    """A round's public candidates, its scores, and the step that learns from them."""
    candidates = made("candidates", labels.public())
    scores = made("scores", released("a" * 24), "source:diaries@" + "a" * 24, candidates)
    step = Prefer(candidates=candidates, scores=scores, adapter=None, config=CONFIG, number=0)
    return candidates, scores, step


def test_what_the_step_makes_is_taken(round_):
    candidates, scores, step = round_
    adapter = made("adapter", scores.label, candidates, scores)
    assert came_back(adapter.model_dump_json(), step) == adapter
    first = Propose(adapter=None, config=CONFIG, label_names=(), number=0)
    assert came_back(candidates.model_dump_json(), first) == candidates


@pytest.mark.parametrize(
    "forge",
    [
        lambda candidates, scores: made("adapter", labels.public(), candidates),
        # By their ids alone: the store would refuse to lose what the scores are labelled with.
        lambda candidates, scores: made("adapter", released("b" * 24), candidates.id, scores.id),
        lambda candidates, scores: made("adapter", scores.label, scores),
        lambda candidates, scores: made("model", scores.label, candidates, scores),
        lambda candidates, scores: scores,
    ],
    ids=["other label", "other charge", "other parents", "other kind", "what was sent"],
)
def test_anything_else_is_refused(round_, forge):
    candidates, scores, step = round_
    with pytest.raises(ZoneError, match="expected adapter, released"):
        came_back(forge(candidates, scores).model_dump_json(), step)


@pytest.mark.parametrize("place", ["s3://elsewhere/x", "file:///etc/x", "https://host/x", "", None])
def test_a_place_outside_of_the_exchange_store_is_not_looked_at(round_, place):
    _, scores, step = round_
    told = json.loads(scores.model_dump_json()) | {"uri": place}
    with pytest.raises(ZoneError, match="exchange store"):
        came_back(json.dumps(told), step)


@pytest.mark.parametrize("message", ["made it", "[]", "null", "3", "{}", '{"uri": 3}', ""])
def test_a_message_without_a_reference_is_refused_in_words(round_, message):
    _, _, step = round_
    with pytest.raises(ZoneError, match=r"prefer: .*exchange store.*same command"):
        came_back(message, step)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.pop("kind"),
        lambda told: told.update(more=1),
        lambda told: told.update(label={"kind": "released"}),
        lambda told: told.update(uri=told["uri"][:-64] + "0" * 64, id="0" * 64),
    ],
    ids=["no kind", "a further field", "half a label", "nothing there"],
)
def test_a_reference_that_is_not_whole_is_refused_in_words(round_, change):
    _, scores, step = round_
    told = json.loads(scores.model_dump_json())
    change(told)
    with pytest.raises(ZoneError, match=r"prefer: .*whole artifact(?s:.*)same command"):
        came_back(json.dumps(told), step)


def test_a_private_artifact_is_not_followed(round_):
    _, _, step = round_
    hidden = made("adapter", labels.private("diaries"))
    with pytest.raises(ZoneError, match="exchange store"):
        came_back(hidden.model_dump_json(), step)


def test_an_answer_is_followed_only_as_the_server_zone_signed_it_to_this_order(round_, monkeypatch):
    candidates, scores, step = round_
    adapter, order = made("adapter", scores.label, candidates, scores), ordered(step)
    answer = answered(adapter, order)
    assert came_back(verified(answer.model_dump_json(), order), step) == adapter
    earlier = ordered(step.model_copy(update={"number": 1}))
    stranger = Signed(content=answer.content, signature=OwnKey("server", b"x" * 32).sign(b"", purpose="answer"))
    for forged in (answered(scores, order).model_copy(update={"content": answer.content}), stranger):
        with pytest.raises(ZoneError, match="keys trust"):
            verified(forged.model_dump_json(), order)
    with pytest.raises(ZoneError, match="keys trust"):
        verified(answer.model_dump_json(), earlier)
    with pytest.raises(ZoneError, match="signed answer"):
        verified(adapter.model_dump_json(), order)


def test_of_a_server_run_that_died_the_clients_run_is_the_one_to_repeat():
    """Prefect is told that a dead run can be retried; inside of the client's error that is the wrong run."""
    (told,) = _crashing("dead", "killed", {"prefect.flow-run.Running"}, 60).actions
    assert "retry it" in told.message
    ended = FlowRun(flow_id=uuid4(), state=Crashed(message=told.message))
    with pytest.raises(UnderstudyError, match=rf"prefer: .*{ended.id}.*no heartbeat for 60 s;.*same command") as failed:
        message_of(ended, "prefer")
    assert "retry it" not in str(failed.value)
    assert message_of(FlowRun(flow_id=uuid4(), state=Completed(message="signed")), "prefer") == "signed"
    with pytest.raises(UnderstudyError, match="no state"):
        message_of(FlowRun(flow_id=uuid4(), state=None), "prefer")


@flow(persist_result=False)
def asking(order, step):
    return SERVER._answer_to(order, step)


def test_a_server_run_that_stands_as_dead_for_a_moment_is_not_taken_for_ended(round_, prefect_server, monkeypatch):
    """Its server was away when it ended: silence crashed it before its end was told."""
    _, _, step = round_

    def looked_at_too_soon(*_, parameters, **__):
        with get_client(sync_client=True) as client:
            run = client.create_flow_run(asking, parameters={})
            client.set_flow_run_state(run.id, Crashed(message=f"no heartbeat for 60 s{RETRY}"), force=True)
            here = contextvars.copy_context()
            threading.Timer(2, lambda: here.run(end, run.id)).start()
            return client.read_flow_run(run.id)

    def end(run):
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(run, Completed(message="signed"), force=True)

    monkeypatch.setattr("understudy.flows.server_side.run_deployment", looked_at_too_soon)
    assert asking(ordered(step), step) == "signed"


def test_a_server_run_that_was_deleted_is_told_as_such(round_, prefect_server, monkeypatch):
    """The deployment is there."""
    _, _, step = round_

    def deleted_meanwhile(*_, **__):
        with get_client(sync_client=True) as client:
            run = client.create_flow_run(asking, parameters={})
            client.delete_flow_run(run.id)
            return client.read_flow_run(run.id)

    monkeypatch.setattr("understudy.flows.server_side.run_deployment", deleted_meanwhile)
    with pytest.raises(UnderstudyError, match=r"prefer-0: .*deleted on the Prefect server.*same command"):
        asking(ordered(step), step)


def test_an_order_that_the_client_zone_did_not_sign_is_not_read(round_):
    _, _, step = round_
    order = ordered(step)
    for forged in (
        order.model_copy(update={"content": order.content.replace("0", "1")}),
        order.model_copy(update={"signature": "00" * 64}),
        order.model_copy(update={"signature": "none"}),
    ):
        with pytest.raises(ZoneError, match="order: expected the signature"):
            SERVER.answer(forged)
