"""The mechanism interface: keyed, recorded, one query per purpose; one-off releases are read back, not drawn again."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.errors import UnderstudyError
from understudy.privacy import mechanisms
from understudy.privacy.grid import charged_sensitivity, grid_of
from understudy.privacy.grid_sum import from_steps, to_steps
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanism_call import Mechanism
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.noise import derive_key
from understudy.privacy.queries import Query
from understudy.privacy.rounded_gaussian import BLOCK, rounded_gaussian
from understudy.privacy.secure_aggregation.round import SecureSettings
from understudy.tensor_files import load_tensors, save_tensors

QUERY = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.zeros(5)}
ASKED = {"sensitivity": 0.5, "noise_multiplier": 2.0, "step": 3, "purpose": "lm"}


def gaussian(name, *, sensitivity=0.5, noise_multiplier=2.0):
    return Query(
        kind="gaussian_sum",
        name=name,
        units=200,
        steps=10,
        sensitivity=sensitivity,
        noise_multiplier=noise_multiplier,
    )


def histogram(name, sigma):
    return Query(kind="histogram", name=name, units=200, sensitivity=1.0, noise_multiplier=sigma)


def on_mask(batch, n, probability):
    return gaussian(f"on-{batch}").model_copy(update={"batch": batch, "units": n, "sampling_probability": probability})


def material(*queries, secret=b"s", charge="charge-1", salt=b"salt"):
    return KeyMaterial(secret * 32, charge, salt * 4, queries)


# What the tests ask for; `material` makes others.
CHARGED = (
    *(gaussian(name) for name in ("lm", "discriminator", "scores", "other")),
    on_mask("batch", 200, 0.5),
    on_mask("train", 200, 0.5),
    on_mask("filter", 200, 0.5),
)
MATERIAL = material(*CHARGED)


def noised(mechanisms, query=QUERY, **changes):
    return mechanisms.gaussian_sum(query, **{**ASKED, **changes})


def steps_of(values, sensitivity=0.5):
    """Whole steps of the grid, exact."""
    steps = flat(values).double() / grid_of(sensitivity)
    assert torch.equal(steps, steps.round())
    return steps


def flat(values):
    return torch.cat([values[name].flatten() for name in sorted(values)])


def test_same_charge_step_and_query_give_the_same_bytes():
    first, again = noised(Mechanisms.live(MATERIAL)), noised(Mechanisms.live(MATERIAL))
    assert first.keys() == QUERY.keys()
    assert all(torch.equal(first[name], again[name]) for name in QUERY)
    assert all(first[name].shape == QUERY[name].shape for name in QUERY)
    assert not torch.equal(first["a"], QUERY["a"])


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 4},
        {"purpose": "discriminator"},
        {"query": {**QUERY, "a": torch.full((5,), 1e-6)}},
        {"query": {**QUERY, "a": torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0**-27])}},
    ],
)
def test_any_other_step_purpose_or_query_gives_other_noise(changes):
    first = flat(noised(Mechanisms.live(MATERIAL))) - flat(QUERY)
    other = flat(noised(Mechanisms.live(MATERIAL), **changes)) - flat(changes.get("query", QUERY))
    assert not bool((first == other).any())


@pytest.mark.parametrize(
    "other",
    [
        material(*CHARGED, secret=b"t"),
        material(*CHARGED, charge="charge-2"),
        material(*CHARGED, salt=b"SALT"),
    ],
)
def test_any_other_key_gives_other_noise_and_masks(other):
    assert not bool((flat(noised(Mechanisms.live(MATERIAL))) == flat(noised(Mechanisms.live(other)))).any())
    one = Mechanisms.live(MATERIAL).poisson(step=0, n=200, probability=0.5)
    two = Mechanisms.live(other).poisson(step=0, n=200, probability=0.5)
    assert not torch.equal(one, two)


def test_noise_scale_is_multiplier_times_sensitivity():
    query = {"a": torch.zeros(20_000)}
    for sensitivity, multiplier in ((0.5, 2.0), (4.0, 0.25), (1.0, 3.0)):
        mechanisms = Mechanisms.live(material(gaussian("lm", sensitivity=sensitivity, noise_multiplier=multiplier)))
        noise = noised(mechanisms, query, sensitivity=sensitivity, noise_multiplier=multiplier)
        assert noise["a"].std().item() == pytest.approx(sensitivity * multiplier, rel=0.03)


def test_zero_noise_is_a_copy_on_the_grid():
    query = {"a": torch.tensor([0.0, 0.1, -7.3])}
    found = noised(Mechanisms.live(material(gaussian("lm", noise_multiplier=0.0))), query, noise_multiplier=0.0)
    assert float((found["a"] - query["a"]).abs().max()) <= grid_of(0.5) / 2
    found["a"].add_(1.0)
    assert query["a"][0] == 0


def test_what_is_released_is_whole_steps_of_the_grid_and_so_are_both_of_its_parts():
    spy = Spy()
    generator = torch.Generator().manual_seed(0)
    query = {"a": torch.randn(500, generator=generator, dtype=torch.float64)}
    released = noised(Mechanisms(MATERIAL, recorder=spy), query)
    (call,) = spy.calls
    assert call[0].grid == grid_of(0.5) == 2.0**-27
    exact, out = steps_of(call[1]), steps_of(released)
    noise = out - exact
    # Within float32 the released number is the one nearest to the sum of the two integers, which is exact.
    assert float(noise.std()) == pytest.approx(2.0 * charged_sensitivity(0.5) / grid_of(0.5), rel=0.1)
    assert float((call[1]["a"] - query["a"]).abs().max()) <= grid_of(0.5) / 2


def test_steps_of_the_grid_pass_as_they_are():
    steps = {"a": torch.tensor([1, -2, 3 << 40])}
    as_floats = {"a": steps["a"].double() * grid_of(0.5)}
    one, other = noised(Mechanisms.live(MATERIAL), steps), noised(Mechanisms.live(MATERIAL), as_floats)
    assert torch.equal(one["a"], other["a"])


def test_a_second_query_under_one_purpose_is_refused():
    mechanisms = Mechanisms.live(MATERIAL)
    noised(mechanisms)
    noised(mechanisms)  # the same query again: the same bytes, no new release
    with pytest.raises(UnderstudyError, match="step=3, purpose='lm'"):
        noised(mechanisms, {**QUERY, "a": torch.ones(5)})
    identifiers = np.zeros((200, 16), dtype=np.uint8)
    mechanisms.poisson(step=0, n=200, probability=0.5)
    with pytest.raises(UnderstudyError, match="poisson"):
        mechanisms.poisson(step=0, n=200, probability=0.5, unit_ids=identifiers)


def test_masks_of_two_trainings_differ():
    mechanisms = Mechanisms.live(MATERIAL)
    first = mechanisms.poisson(step=0, n=200, probability=0.5, purpose="train")
    assert not torch.equal(first, mechanisms.poisson(step=0, n=200, probability=0.5, purpose="filter"))
    assert torch.equal(first, mechanisms.poisson(step=0, n=200, probability=0.5, purpose="train"))


@pytest.mark.parametrize(
    "changes",
    [
        {"sensitivity": 0.0},
        {"sensitivity": float("inf")},
        {"sensitivity": float("nan")},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("nan")},
        {"query": {}},
        {"query": {"a": torch.zeros(3, dtype=torch.float16)}},
        {"query": {"a": torch.tensor([float("nan")])}},
        {"purpose": "../up"},
    ],
)
def test_senseless_calls_are_refused(changes):
    with pytest.raises((ValueError, UnderstudyError), match=r"expected|nothing was drawn"):
        noised(Mechanisms.live(MATERIAL), **changes)


@given(st.lists(st.integers(-50, 10**12), min_size=1, max_size=6), st.sampled_from([0.0, 0.3, 5.0]))
def test_histogram_is_whole_numbers_near_the_counts(counts, sigma):
    exact = torch.tensor(counts)
    found = Mechanisms.live(material(histogram("sizes", sigma))).histogram(exact, sigma=sigma, purpose="sizes")
    assert found.dtype == torch.int64
    assert int((found - exact).abs().max()) <= 12 * sigma


def test_histogram_is_written_before_use_and_read_back_ever_after(tmp_path):
    counts = torch.tensor([40, 2, 17])
    release_log, charged = tmp_path / "release_log", material(histogram("class_sizes", 4.0), histogram("other", 4.0))
    first = Mechanisms.live(charged, release_log).histogram(counts, sigma=4.0, purpose="class_sizes")
    (file,) = release_log.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert torch.equal(load_tensors(file)["counts"], first)
    # even if the counts were to change, the released value stands: it is one release
    later = Mechanisms.live(charged, release_log).histogram(counts + 5, sigma=4.0, purpose="class_sizes")
    assert torch.equal(later, first)
    other = Mechanisms.live(charged, release_log).histogram(counts, sigma=4.0, purpose="other")
    assert not torch.equal(other, first)


def test_without_a_journal_a_second_histogram_is_refused():
    mechanisms = Mechanisms.live(material(histogram("sizes", 1.0)))
    mechanisms.histogram(torch.tensor([1, 2]), sigma=1.0, purpose="sizes")
    with pytest.raises(UnderstudyError, match="histogram"):
        mechanisms.histogram(torch.tensor([2, 2]), sigma=1.0, purpose="sizes")


@pytest.mark.parametrize("kind", ["gaussian_sum", "masked_sum"])
def test_a_query_released_once_is_read_back_and_another_in_its_place_refused(kind, tmp_path):
    release_log = tmp_path / "release-logs" / "charge-1"
    settings = SecureSettings(bits=20, noise_multiplier=1.0, smallest_surviving=4)

    def released(value, purpose="scores"):
        """By a mechanism interface of its own each time, as in another process."""
        summed = {"kind": "masked_sum", "units": 4, "steps": 3, "sensitivity": 1.0, "noise_multiplier": 1.0}
        masked = (Query(name=name, **summed) for name in ("scores", "other"))
        mechanisms = Mechanisms.live(MATERIAL if kind == "gaussian_sum" else material(*masked), release_log)
        if kind == "gaussian_sum":
            return noised(mechanisms, {"a": torch.full((3,), value)}, purpose=purpose, once=True)["a"]
        vectors = torch.full((4, 3), value, dtype=torch.float64)
        return mechanisms.masked_sum(
            vectors, settings, participating=torch.ones(4, dtype=torch.bool), step=2, purpose=purpose
        )

    first = released(0.25)
    (file,) = release_log.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    content = file.read_bytes()
    assert torch.equal(released(0.25), first)
    with pytest.raises(UnderstudyError, match=r"second release.*public_seed"):
        released(0.5)
    assert file.read_bytes() == content
    assert not torch.equal(released(0.25, "other"), first)


def test_clients_that_send_the_same_draw_noise_of_their_own():
    """Who takes no part sends zeros like all others who do not: one share, drawn for each, would be far too much."""
    n, d = 8, 4000
    asked = Query(kind="masked_sum", name="scores", units=n, sensitivity=1.0, noise_multiplier=2.0)
    settings = SecureSettings(bits=12, noise_multiplier=2.0, smallest_surviving=n)
    vectors, nobody = torch.zeros(n, d, dtype=torch.float64), torch.zeros(n, dtype=torch.bool)
    mechanisms = Mechanisms.live(material(asked))
    found = mechanisms.masked_sum(vectors, settings, participating=nobody, step=0, purpose="scores")
    assert 0.9 < float(found.double().square().mean()) / 2.0**2 < 1.1


def test_a_masked_sum_of_more_or_fewer_clients_than_charged_is_refused():
    asked = Query(kind="masked_sum", name="scores", units=5, sensitivity=1.0, noise_multiplier=1.0)
    settings = SecureSettings(bits=12, noise_multiplier=1.0, smallest_surviving=4)

    def released(n):
        everyone = torch.ones(n, dtype=torch.bool)
        vectors = torch.zeros(n, 3, dtype=torch.float64)
        return Mechanisms.live(material(asked)).masked_sum(
            vectors, settings, participating=everyone, step=0, purpose="scores"
        )

    assert released(5).shape == (3,)
    for n in (4, 6):
        with pytest.raises(UnderstudyError, match=rf"units={n} is not what charge charge-1 paid for .*5 units"):
            released(n)


def test_a_masked_sum_of_the_same_vectors_and_other_clients_is_another_query(tmp_path):
    settings = SecureSettings(bits=20, noise_multiplier=1.0, smallest_surviving=4)
    asked = Query(kind="masked_sum", name="scores", units=4, steps=3, sensitivity=1.0, noise_multiplier=1.0)
    vectors = torch.full((4, 3), 0.25, dtype=torch.float64)

    def released(mechanisms, *absent):
        taking_part = torch.tensor([client not in absent for client in range(4)])
        return mechanisms.masked_sum(vectors, settings, participating=taking_part, step=2, purpose="scores")

    one = Mechanisms.live(material(asked), tmp_path)
    first = released(one, 1)
    assert torch.equal(released(one, 1), first)
    with pytest.raises(UnderstudyError, match="two different masked_sum queries"):
        released(one, 2)
    with pytest.raises(UnderstudyError, match=r"second release"):
        released(Mechanisms.live(material(asked), tmp_path))


def test_what_is_in_a_release_log_without_the_tag_of_its_query_answers_none(tmp_path):
    noised(Mechanisms.live(MATERIAL, tmp_path), once=True)
    (file,) = tmp_path.iterdir()
    save_tensors(file, {name: value for name, value in load_tensors(file).items() if name in QUERY})
    with pytest.raises(UnderstudyError, match="second release"):
        noised(Mechanisms.live(MATERIAL, tmp_path), once=True)


def test_a_query_that_was_noted_elsewhere_is_asked_here_only_if_it_is_the_same(tmp_path):
    """The release log of the machine that asked first is not there; where it was noted is."""
    noted = {}
    homes = (Mechanisms.live(MATERIAL, tmp_path / name, noted.setdefault) for name in "abc")
    first = noised(next(homes), once=True)
    assert all(torch.equal(first[name], value) for name, value in noised(next(homes), once=True).items())
    with pytest.raises(UnderstudyError, match="second release"):
        noised(next(homes), {"a": torch.ones(5)}, once=True)
    assert not (tmp_path / "c").exists()


def test_calls_of_two_kinds_never_share_a_key():
    """Whatever their names: a mask and a client's noise have no query in their keys."""
    mechanisms = Mechanisms.live(MATERIAL)
    calls = [Mechanism(kind, 1, "a", 1.0, 1.0) for kind in ("poisson", "gaussian_sum", "histogram", "masked_sum")]
    assert len({mechanisms._key(call) for call in calls}) == len(calls)


def test_what_is_read_back_is_what_was_written(tmp_path):
    noised(Mechanisms.live(MATERIAL, tmp_path), once=True)
    (file,) = tmp_path.iterdir()
    kept = load_tensors(file)
    write = {name: value + 1 for name, value in kept.items() if name in QUERY}
    save_tensors(file, kept | write)
    found = noised(Mechanisms.live(MATERIAL, tmp_path), once=True)
    assert found.keys() == QUERY.keys()
    assert all(torch.equal(found[name], write[name]) for name in QUERY)


def test_a_journal_says_nothing_of_its_query_without_the_key(tmp_path):
    one, two = (
        Mechanisms.live(material(*CHARGED, secret=secret), tmp_path / name)
        for name, secret in (("one", b"s"), ("two", b"t"))
    )
    tags = []
    for each in (one, two):
        noised(each, once=True)
        (file,) = each.release_log.iterdir()
        tags.append(load_tensors(file)["release log.tag"])
    assert not torch.equal(*tags)


def test_nothing_secret_in_the_repr():
    text = repr(Mechanisms.live(MATERIAL))
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
    charged = material(gaussian("lm"), histogram("sizes", 1.5), on_mask("train", 7, 0.25))
    mechanisms = Mechanisms(charged, recorder=spy)
    mask = mechanisms.poisson(step=1, n=7, probability=0.25, purpose="train")
    sums = noised(mechanisms)
    counts = mechanisms.histogram(torch.tensor([1, 2]), sigma=1.5, purpose="sizes")
    assert [call[0] for call in spy.calls] == [
        Mechanism("poisson", 1, "train", scale=0.25, sensitivity=0.0),
        Mechanism("gaussian_sum", 3, "lm", 2.0 * charged_sensitivity(0.5), charged_sensitivity(0.5), 2.0**-27),
        Mechanism("histogram", 0, "sizes", scale=1.5, sensitivity=1.0, grid=1.0),
    ]
    assert torch.equal(spy.calls[0][2]["mask"], mask)
    assert spy.calls[1][2].keys() == sums.keys()
    assert all(torch.equal(spy.calls[1][2][name], value) for name, value in sums.items())
    assert torch.equal(spy.calls[2][2]["counts"], counts)
    assert torch.equal(spy.calls[1][1]["b"], QUERY["b"])


def test_the_draw_is_cut_into_the_tensors_in_order_of_their_names():
    """Tensors that begin and end in the middle of a block, one that covers several, and empty ones."""
    sizes = {"b": BLOCK - 7, "a": 5, "d": 2 * BLOCK + 11, "c": 0, "e": 3, "f": 0}
    query = {name: torch.arange(float(size)) / (size + 1) for name, size in sizes.items()}
    found = noised(Mechanisms.live(MATERIAL), query)
    grid = grid_of(0.5)
    steps = {name: to_steps(value, grid=grid) for name, value in query.items()}
    call, live = Mechanism("gaussian_sum", 3, "lm", 0.0, 0.0), Mechanisms.live(MATERIAL)
    key = live._key(call, live._digest(call, steps))
    draw = rounded_gaussian(key, sum(sizes.values()), scale=2.0 * charged_sensitivity(0.5) / grid)
    parts = dict(zip(sorted(sizes), draw.split([sizes[name] for name in sorted(sizes)]), strict=True))
    for name, value in found.items():
        assert torch.equal(value, from_steps(steps[name] + parts[name], grid=grid))


def test_a_query_is_tagged_under_a_key_that_nothing_else_has(monkeypatch):
    query, calls = {"a": torch.arange(4)}, [("gaussian_sum", 3), ("gaussian_sum", 4), ("histogram", 3)]
    of = [Mechanism(kind, step, "lm", scale=0.0, sensitivity=0.0) for kind, step in calls]
    tags = [Mechanisms.live(MATERIAL)._digest(call, query) for call in of]
    another = dataclasses.replace(MATERIAL, charge_id="another")
    tags.append(Mechanisms.live(another)._digest(of[0], query))
    assert len(set(tags)) == len(tags)

    asked = []

    def noting(secret, **parts):
        asked.append(parts)
        return derive_key(secret, **parts)

    monkeypatch.setattr(mechanisms, "derive_key", noting)
    noised(Mechanisms.live(MATERIAL))
    of_tag, of_noise = asked
    # No purpose that a caller gives can be that of a tag.
    assert not mechanisms._PURPOSE.fullmatch(of_tag["purpose"].removeprefix("gaussian_sum/"))
    assert of_noise["purpose"] == "gaussian_sum/lm"
    assert len(of_noise["query_digest"]) == 16
