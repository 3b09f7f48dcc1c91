"""What the flow of an audit itself does with what an attack found."""

import json
import traceback
from pathlib import Path

import pytest
from guarantees import GUARANTEE

from understudy.artifacts.access import path_of, write_json
from understudy.errors import TaskFailed
from understudy.methods.reading import Made
from understudy.privacy import labels
from understudy.tasks import auditing
from understudy.tasks.auditing import _made, _paid_for, caught

FIGURES = {"epsilon": 0.5, "guesses": 4, "right": 3, "auc": 0.7, "auc_interval": [0.5, 0.9], "rates": []}


def found(home, **changed):
    return write_json({"data": FIGURES | changed}, kind="attack", label=labels.private("ward"))


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_an_attack_is_caught_that_proves_an_epsilon(epsilon, home):
    assert caught(found(home, epsilon=epsilon)) is (epsilon > 0)


def test_an_error_about_figures_tells_prefect_none_of_them(home):
    """Figures of an earlier version, say: pydantic shows the value that it did not expect."""
    with pytest.raises(TaskFailed) as failed:
        caught(found(home, auc=[13 / 16]))
    assert "0.8125" not in "".join(traceback.format_exception(failed.value))


def test_an_attacker_of_sums_is_handed_what_the_run_made_them_of(home):
    """Scores of each round lie behind the model that preference optimisation releases, not in it."""
    kept, last = labels.private("ward"), None
    for number in range(2):
        proposed = write_json(number, kind="candidates", label=kept, parents=[last] if last else [])
        scored = write_json({"of": number}, kind="scores", label=kept, parents=[proposed])
        last = write_json(number, kind="adapter", label=kept, parents=[proposed, scored, *([last] if last else [])])
    made = _made(write_json("model", kind="model", label=kept, parents=[last]))
    assert made.kind == "model"
    rounds = made.behind("scores")
    assert [json.loads((one.folder / "value.json").read_text()) for one in rounds] == [{"of": 0}, {"of": 1}]
    assert [[parent.kind for parent in one.parents] for one in rounds] == [["candidates"], ["candidates"]]
    assert len(made.behind("adapter")) == 2


def test_what_a_long_run_made_is_looked_at_once(home, monkeypatch):
    """From each round three ways lead to the one before: over twenty rounds they would be billions."""
    kept, last, rounds = labels.private("ward"), None, 9
    for number in range(rounds):
        proposed = write_json(number, kind="candidates", label=kept, parents=[last] if last else [])
        scored = write_json(number, kind="scores", label=kept, parents=[proposed])
        last = write_json(number, kind="adapter", label=kept, parents=[proposed, scored, *([last] if last else [])])
    looked = []
    monkeypatch.setattr(auditing, "path_of", lambda ref: looked.append(ref.id) or path_of(ref))
    made = auditing._made(last)
    assert len(looked) == 3 * rounds
    assert len(set(looked)) == 3 * rounds
    chain = Made("adapter", Path("0"))
    for number in range(1, 60):
        chain = Made("adapter", Path(f"{number}"), (chain, chain, chain))
    assert len(chain.behind("adapter")) == 60
    assert len(repr(chain)) < 200
    assert len(made.behind("scores")) == rounds


def test_an_attacker_of_a_model_sees_what_the_charge_paid_for(home):
    """Trajectory matching hands over what it learned from the experts, whose adapters are released too."""
    kept = labels.private("ward")
    experts = write_json("experts", kind="trajectories", label=kept)
    learned = write_json("learned", kind="distilled", label=kept, parents=[experts])
    assert _paid_for(_made(learned), "trajectories") == path_of(experts)
    earlier = write_json("of the client", kind="model", label=kept)
    model = write_json("of the server", kind="model", label=kept, parents=[earlier])
    assert _paid_for(_made(model), "model") == path_of(model)
    assert _paid_for(_made(model), "counts") == path_of(model)


def test_what_a_release_came_from_outside_the_stores_is_no_part_of_it(home):
    release = labels.released(GUARANTEE)
    target = write_json(1, kind="target", label=release, parents=[f"source:{GUARANTEE.source}@{GUARANTEE.charge_id}"])
    assert _made(target).parents == ()
    assert _made(write_json(2, kind="model", label=release, parents=[target])).behind("target") == [_made(target)]
