"""The gateway: keyed, recorded, one query per purpose; one-off releases are read back, never drawn again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import UnderstudyError
from understudy.models.checkpoints import load_tensors, save_tensors
from understudy.privacy.ledger_records import KeyMaterial
from understudy.privacy.mechanisms import Gateway, Mechanism
from understudy.privacy.secure_round import SecureSettings

MATERIAL = KeyMaterial(secret=b"s" * 32, charge_id="charge-1", salt=b"salt" * 4)
QUERY = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.zeros(5)}


def noised(gateway, query=QUERY, **changes):
    options = {"sensitivity": 0.5, "noise_multiplier": 2.0, "step": 3, "purpose": "lm"}
    return gateway.gaussian_sum(query, **{**options, **changes})


def flat(values):
    return torch.cat([values[name].flatten() for name in sorted(values)])


def test_same_charge_step_and_query_give_the_same_bytes():
    first, again = noised(Gateway.live(MATERIAL)), noised(Gateway.live(MATERIAL))
    assert first.keys() == QUERY.keys()
    assert all(torch.equal(first[name], again[name]) for name in QUERY)
    assert all(first[name].shape == QUERY[name].shape for name in QUERY)
    assert not torch.equal(first["a"], QUERY["a"])


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 4},
        {"purpose": "discriminator"},
        {"query": {**QUERY, "a": torch.full((5,), 1e-30)}},
        {"query": {**QUERY, "a": torch.tensor([0.0, 0.0, 0.0, 0.0, -0.0])}},
    ],
)
def test_any_other_step_purpose_or_query_gives_other_noise(changes):
    first = flat(noised(Gateway.live(MATERIAL))) - flat(QUERY)
    other = flat(noised(Gateway.live(MATERIAL), **changes)) - flat(changes.get("query", QUERY))
    assert not bool((first == other).any())


@pytest.mark.parametrize(
    "material",
    [
        KeyMaterial(secret=b"t" * 32, charge_id="charge-1", salt=b"salt" * 4),
        KeyMaterial(secret=b"s" * 32, charge_id="charge-2", salt=b"salt" * 4),
        KeyMaterial(secret=b"s" * 32, charge_id="charge-1", salt=b"SALT" * 4),
    ],
)
def test_any_other_key_gives_other_noise_and_masks(material):
    assert not bool((flat(noised(Gateway.live(MATERIAL))) == flat(noised(Gateway.live(material)))).any())
    one = Gateway.live(MATERIAL).poisson(step=0, n=200, probability=0.5)
    two = Gateway.live(material).poisson(step=0, n=200, probability=0.5)
    assert not torch.equal(one, two)


def test_noise_scale_is_multiplier_times_sensitivity():
    query = {"a": torch.zeros(20_000)}
    for sensitivity, multiplier in ((0.5, 2.0), (4.0, 0.25), (1.0, 3.0)):
        noise = noised(Gateway.live(MATERIAL), query, sensitivity=sensitivity, noise_multiplier=multiplier)
        assert noise["a"].std().item() == pytest.approx(sensitivity * multiplier, rel=0.03)


def test_zero_noise_is_an_unchanged_copy():
    found = noised(Gateway.live(MATERIAL), noise_multiplier=0.0)
    assert all(torch.equal(found[name], QUERY[name]) for name in QUERY)
    found["a"].add_(1.0)
    assert QUERY["a"].sum() == 0


def test_a_second_query_under_one_purpose_is_refused():
    gateway = Gateway.live(MATERIAL)
    noised(gateway)
    noised(gateway)  # the same query again: the same bytes, no new release
    with pytest.raises(UnderstudyError, match="step=3, purpose='lm'"):
        noised(gateway, {**QUERY, "a": torch.ones(5)})
    gateway.poisson(step=0, n=10, probability=0.5)
    with pytest.raises(UnderstudyError, match="poisson"):
        gateway.poisson(step=0, n=10, probability=0.6)


def test_masks_of_two_trainings_differ():
    gateway = Gateway.live(MATERIAL)
    first = gateway.poisson(step=0, n=200, probability=0.5, purpose="train")
    assert not torch.equal(first, gateway.poisson(step=0, n=200, probability=0.5, purpose="filter"))
    assert torch.equal(first, gateway.poisson(step=0, n=200, probability=0.5, purpose="train"))


@pytest.mark.parametrize(
    "changes",
    [
        {"sensitivity": 0.0},
        {"sensitivity": float("inf")},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("nan")},
        {"query": {}},
        {"query": {"a": torch.zeros(3, dtype=torch.float64)}},
        {"query": {"a": torch.zeros(3, dtype=torch.float16)}},
        {"purpose": "../up"},
    ],
)
def test_senseless_calls_are_refused(changes):
    with pytest.raises(ValueError, match="expected"):
        noised(Gateway.live(MATERIAL), **changes)


@given(st.lists(st.integers(-50, 10**12), min_size=1, max_size=6), st.sampled_from([0.0, 0.3, 5.0]))
def test_histogram_is_whole_numbers_near_the_counts(counts, sigma):
    exact = torch.tensor(counts)
    found = Gateway.live(MATERIAL).histogram(exact, sigma=sigma, purpose="class_sizes")
    assert found.dtype == torch.int64
    assert int((found - exact).abs().max()) <= 12 * sigma


def test_histogram_is_written_before_use_and_read_back_ever_after(tmp_path):
    counts = torch.tensor([40, 2, 17])
    journal = tmp_path / "journal"
    first = Gateway.live(MATERIAL, journal).histogram(counts, sigma=4.0, purpose="class_sizes")
    (file,) = journal.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert torch.equal(load_tensors(file)["counts"], first)
    # even if the counts were to change, the released value stands: it is one release
    later = Gateway.live(MATERIAL, journal).histogram(counts + 5, sigma=4.0, purpose="class_sizes")
    assert torch.equal(later, first)
    other = Gateway.live(MATERIAL, journal).histogram(counts, sigma=4.0, purpose="other")
    assert not torch.equal(other, first)


def test_without_a_journal_a_second_histogram_is_refused():
    gateway = Gateway.live(MATERIAL)
    gateway.histogram(torch.tensor([1, 2]), sigma=1.0, purpose="sizes")
    with pytest.raises(UnderstudyError, match="histogram"):
        gateway.histogram(torch.tensor([2, 2]), sigma=1.0, purpose="sizes")


@pytest.mark.parametrize("kind", ["gaussian_sum", "masked_sum"])
def test_a_query_released_once_is_read_back_and_another_in_its_place_refused(kind, tmp_path):
    journal = tmp_path / "journals" / "charge-1"
    settings = SecureSettings(bits=20, noise_multiplier=1.0, smallest_surviving=4)

    def released(value, purpose="scores"):
        """By a gateway of its own each time, as in another process."""
        gateway = Gateway.live(MATERIAL, journal)
        if kind == "gaussian_sum":
            return noised(gateway, {"a": torch.full((3,), value)}, purpose=purpose, once=True)["a"]
        vectors = torch.full((4, 3), value, dtype=torch.float64)
        return gateway.masked_sum(
            vectors, settings, participating=torch.ones(4, dtype=torch.bool), step=2, purpose=purpose
        )

    first = released(0.25)
    (file,) = journal.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    content = file.read_bytes()
    assert torch.equal(released(0.25), first)
    with pytest.raises(UnderstudyError, match=r"second release that nobody paid for.*public_seed"):
        released(0.5)
    assert file.read_bytes() == content
    assert not torch.equal(released(0.25, "other"), first)


def test_what_is_read_back_is_what_was_written(tmp_path):
    noised(Gateway.live(MATERIAL, tmp_path), once=True)
    (file,) = tmp_path.iterdir()
    kept = load_tensors(file)
    write = {name: value + 1 for name, value in kept.items() if name in QUERY}
    save_tensors(file, kept | write)
    found = noised(Gateway.live(MATERIAL, tmp_path), once=True)
    assert found.keys() == QUERY.keys()
    assert all(torch.equal(found[name], write[name]) for name in QUERY)


def test_a_journal_says_nothing_of_its_query_without_the_key(tmp_path):
    one, two = (
        Gateway.live(KeyMaterial(secret=secret * 32, charge_id="charge-1", salt=b"salt" * 4), tmp_path / name)
        for name, secret in (("one", b"s"), ("two", b"t"))
    )
    tags = []
    for gateway in (one, two):
        noised(gateway, once=True)
        (file,) = gateway.journal.iterdir()
        tags.append(load_tensors(file)["journal.tag"])
    assert not torch.equal(*tags)


def test_nothing_secret_in_the_repr():
    text = repr(Gateway.live(MATERIAL))
    assert "salt" not in text
    assert "ssss" not in text


class Spy:
    def __init__(self):
        self.calls = []

    def observe(self, mechanism, query, draw):
        output = draw()
        self.calls.append((mechanism, dict(query), output))
        return output


def test_every_call_passes_the_recorder():
    spy = Spy()
    gateway = Gateway(MATERIAL, recorder=spy)
    mask = gateway.poisson(step=1, n=7, probability=0.25, purpose="train")
    sums = noised(gateway)
    counts = gateway.histogram(torch.tensor([1, 2]), sigma=1.5, purpose="sizes")
    assert [call[0] for call in spy.calls] == [
        Mechanism("poisson", 1, "train", scale=0.25, sensitivity=0.0),
        Mechanism("gaussian_sum", 3, "lm", scale=1.0, sensitivity=0.5),
        Mechanism("histogram", 0, "sizes", scale=1.5, sensitivity=1.0),
    ]
    assert torch.equal(spy.calls[0][2]["mask"], mask)
    assert spy.calls[1][2] is sums
    assert torch.equal(spy.calls[2][2]["counts"], counts)
    assert torch.equal(spy.calls[1][1]["b"], QUERY["b"])
