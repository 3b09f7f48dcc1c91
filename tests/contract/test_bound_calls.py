"""An attacker's list: calls through the mechanism interface that differ in one field from what was charged.

The interface is opened as the tasks open it, from a charge in a real ledger. Every call is refused before anything is
drawn: the key stream is not even derived.
"""

import numpy as np
import pytest
import torch

from understudy.errors import UnderstudyError
from understudy.privacy import mechanisms as mechanisms_module
from understudy.privacy.accounting import epsilon_pld
from understudy.privacy.ledger.ledger import Ledger, SourceRecord
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Query, event_delta, event_of, queries_to_json
from understudy.privacy.secure_aggregation.round import SecureSettings

DELTA = 1e-4
TRAINING = {"kind": "gaussian_sum", "units": 60, "steps": 4, "sensitivity": 0.5, "batch": "train"}
QUERIES = (
    Query(name="train/lm", noise_multiplier=2.0, sampling_probability=0.25, **TRAINING),
    Query(name="train/head", noise_multiplier=3.0, sampling_probability=0.25, **TRAINING),
    Query(kind="gaussian_sum", name="target", units=60, sensitivity=1.0, noise_multiplier=4.0),
    Query(kind="histogram", name="class-sizes", units=60, sensitivity=1.0, noise_multiplier=8.0),
    Query(kind="masked_sum", name="scores", units=5, steps=2, sensitivity=1.0, noise_multiplier=6.0),
)
SECURE = {"bits": 20, "noise_multiplier": 6.0, "smallest_surviving": 4}


@pytest.fixture
def charged(tmp_path):
    """A ledger with one charge for the list, and the charge's id."""
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", secret=b"a secret of the client zone, for tests")
    ledger.register(SourceRecord(name="s", unit="example", relation="replace_special", epsilon=50.0, delta=5e-3, n=60))
    epsilon = epsilon_pld(event_of(QUERIES), event_delta(QUERIES, epsilon=10.0, delta=DELTA)) * 1.0001
    charge = ledger.reserve(
        source="s",
        request_key="r",
        queries=queries_to_json(QUERIES),
        epsilon=epsilon,
        delta=DELTA,
        epsilon_rdp=epsilon,
        unit="example",
        relation="replace_special",
        code_digest="d",
    )
    return ledger, charge.id


def mask(mechanisms, **changes):
    return mechanisms.poisson(**{"step": 1, "n": 60, "probability": 0.25, "purpose": "train", **changes})


def gradient(mechanisms, **changes):
    mask(mechanisms)
    plain = {"sensitivity": 0.5, "noise_multiplier": 2.0, "step": 1, "purpose": "train/lm"}
    return mechanisms.gaussian_sum({"w": torch.zeros(3)}, **{**plain, **changes})


def target(mechanisms, **changes):
    plain = {"sensitivity": 1.0, "noise_multiplier": 4.0, "step": 0, "purpose": "target"}
    return mechanisms.gaussian_sum({"w": torch.zeros(3)}, **{**plain, **changes})


def counts(mechanisms, **changes):
    return mechanisms.histogram(torch.tensor([4, 5]), **{"sigma": 8.0, "purpose": "class-sizes", **changes})


def scores(mechanisms, units=5, settings=SECURE, **changes):
    return mechanisms.masked_sum(
        torch.zeros(units, 4, dtype=torch.float64),
        SecureSettings(**settings),
        participating=torch.ones(units, dtype=torch.bool),
        **{"step": 1, "purpose": "scores", **changes},
    )


def without_its_mask(mechanisms):
    return mechanisms.gaussian_sum(
        {"w": torch.zeros(3)}, sensitivity=0.5, noise_multiplier=2.0, step=1, purpose="train/lm"
    )


def on_the_mask_of_another_step(mechanisms):
    mask(mechanisms, step=2)
    return without_its_mask(mechanisms)


def one_call_more(mechanisms):
    target(mechanisms)
    return mechanisms.gaussian_sum(
        {"w": torch.ones(3)}, sensitivity=1.0, noise_multiplier=4.0, step=0, purpose="target"
    )


ATTACKS = {
    "mask of another probability": lambda g: mask(g, probability=0.5),
    "mask of a lower probability": lambda g: mask(g, probability=0.24),
    "mask of every unit": lambda g: mask(g, probability=1.0),
    "mask of fewer units": lambda g: mask(g, n=59),
    "mask of more units": lambda g: mask(g, n=61),
    "mask of another name": lambda g: mask(g, purpose="head"),
    "mask after the last step": lambda g: mask(g, step=4),
    "mask before the first step": lambda g: mask(g, step=-1),
    "gradient with next to no sensitivity": lambda g: gradient(g, sensitivity=1e-9),
    "gradient with a smaller sensitivity": lambda g: gradient(g, sensitivity=0.4999),
    "gradient with a larger sensitivity": lambda g: gradient(g, sensitivity=1.0),
    "gradient with next to no noise": lambda g: gradient(g, noise_multiplier=1e-6),
    "gradient without noise": lambda g: gradient(g, noise_multiplier=0.0),
    "gradient with the other stream's noise": lambda g: gradient(g, noise_multiplier=3.0),
    "gradient of another name": lambda g: gradient(g, purpose="train/filter"),
    "gradient under the target's name": lambda g: gradient(g, purpose="target"),
    "gradient after the last step": lambda g: gradient(g, step=4),
    "gradient without its mask": without_its_mask,
    "gradient on the mask of another step": on_the_mask_of_another_step,
    "target with next to no sensitivity": lambda g: target(g, sensitivity=1e-9),
    "target without noise": lambda g: target(g, noise_multiplier=0.0),
    "target at a second step": lambda g: target(g, step=1),
    "target under the histogram's name": lambda g: target(g, purpose="class-sizes"),
    "target once more, of other rows": one_call_more,
    "counts with less noise": lambda g: counts(g, sigma=7.9),
    "counts without noise": lambda g: counts(g, sigma=0.0),
    "counts of another name": lambda g: counts(g, purpose="lengths"),
    "counts under the target's name": lambda g: counts(g, purpose="target"),
    "scores with less noise": lambda g: scores(g, settings={**SECURE, "noise_multiplier": 5.9}),
    "scores of more clients": lambda g: scores(g, units=6),
    "scores of another name": lambda g: scores(g, purpose="votes"),
    "scores after the last round": lambda g: scores(g, step=2),
}


def test_there_are_thirty_attacks():
    assert len(ATTACKS) >= 30


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_a_call_that_differs_in_one_field_is_refused_before_anything_is_drawn(charged, attack, monkeypatch):
    ledger, charge_id = charged
    derived, plain = [], mechanisms_module.derive_key

    def spy(*args, **options):
        derived.append((options["purpose"], options["step"]))
        return plain(*args, **options)

    monkeypatch.setattr(mechanisms_module, "derive_key", spy)
    mechanisms = Mechanisms.live(ledger.material(charge_id))
    with pytest.raises(UnderstudyError, match=r"nothing was drawn|two different"):
        attack(mechanisms)
    # What leads up to some attacks is on the list and was answered; nothing was derived for the attack itself.
    # The tag of a query tells it apart and draws nothing.
    assert len([purpose for purpose, _ in derived if not purpose.endswith("#query")]) <= 1


def test_the_charged_calls_pass(charged):
    ledger, charge_id = charged
    mechanisms = Mechanisms.live(ledger.material(charge_id))
    for step in range(4):
        assert mask(mechanisms, step=step).shape == (60,)
    assert gradient(mechanisms)["w"].shape == (3,)
    assert gradient(mechanisms, purpose="train/head", noise_multiplier=3.0)["w"].shape == (3,)
    assert target(mechanisms)["w"].shape == (3,)
    assert counts(mechanisms).shape == (2,)
    assert scores(mechanisms).shape == (4,)


def test_the_mask_by_identifier_is_bound_like_any_other(charged):
    ledger, charge_id = charged
    identifiers = np.random.default_rng(0).integers(0, 256, (60, 16), dtype=np.uint8)
    mechanisms = Mechanisms.live(ledger.material(charge_id))
    whole = mask(mechanisms, unit_ids=identifiers)
    # Who else is there, and in which order, changes nobody's part.
    order = np.random.default_rng(1).permutation(60)
    again = Mechanisms.live(ledger.material(charge_id))
    assert torch.equal(mask(again, unit_ids=identifiers[order]), whole[torch.from_numpy(order)])
    assert 0 < int(whole.sum()) < 60
    with pytest.raises(UnderstudyError, match="nothing was drawn"):
        mask(again, unit_ids=identifiers[:59], n=59)
    with pytest.raises(UnderstudyError, match="two different"):
        mask(again, unit_ids=identifiers)
