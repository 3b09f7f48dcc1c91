"""Whoever knows both candidate queries, and allows any noise value, learns nothing from the floats of a release.

The attack on float noise: a released number is a candidate's float plus some float that the noise may be, rounded. Of
the right candidate every coordinate is reachable, of the wrong one some are not. Against noise in float32 it names the
right neighbour every time; on the grid it is a coin.
"""

import numpy as np
import pytest
import torch
from scipy import stats
from tests_support import write_random_model

from understudy.data.private_rows import PrivateRows
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.queries import Asked, queries_of, schedule_of
from understudy.methods.gradient_matching.release import release_target
from understudy.methods.preference_optimization.scoring import as_query, exact_sum
from understudy.models.loading import load_model
from understudy.privacy.calibration import analytic_gaussian_sigma
from understudy.privacy.grid import grid_of
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Query
from understudy.privacy.secure_aggregation.round import SecureSettings
from understudy.privacy.testing.replay import Recording

PLANTED = 20
# Another processor rounds a model's gradients differently, and a query of other last digits gets other noise, so the
# guesses are others there. With 200 releases at 0.01 each kind would fail on one processor in a hundred; these find as
# small an advantage.
RELEASES, SIGNIFICANCE = 800, 1e-6
LABELS = ("negative", "positive")
TARGETS = ("head", "label_rows", "sketch")
KINDS = (*TARGETS, "length", "scores", "training", "counts", "masked")


def material(charge, *queries):
    return KeyMaterial(b"s" * 32, f"charge-{charge}", b"t" * 32, queries)


def exact_target(model, kind, texts):
    """The real query of a target, as the mechanism gets it, and that of the length."""
    # The head of the shipped model has 2.6 million numbers a label: for it alone a smaller model does.
    name = str(model) if kind == "head" else "tiny-llama"
    config = GradientMatchingConfig(
        model=name,
        max_length=16,
        length="as_in_data",
        target={"kind": "head" if kind == "length" else kind, "sketch_dimension": 256},
    )
    planned = schedule_of(queries_of(config, n=len(texts), epsilon=0.05, delta=1e-4))
    recording = Recording()
    mechanisms = Mechanisms(material(0, *planned.queries), recorder=recording)
    rows = [row % 2 for row in range(len(texts))]
    release_target(PrivateRows(texts, rows, LABELS), Asked(config, planned, mechanisms), base=load_model(name))
    target, length = planned.queries
    wanted = length if kind == "length" else target
    (call,) = [call for call in recording.calls if call.mechanism.purpose == wanted.name]
    return wanted, call.query


def exact_scores(without):
    """The sum of 40 clients' score vectors over 120 candidates."""
    random = np.random.default_rng(0)
    means, candidates = random.normal(size=(40, 16)), random.normal(size=(120, 16))
    mask = np.ones(40, dtype=bool)
    mask[without] = without is None
    total = exact_sum(means, candidates, mask, normalise="standardise", over="within", per_prompt=4)
    return {"scores": torch.from_numpy(as_query(total, slots=40))}


def candidates_of(kind, model):
    """The list entry of a released query and its exact values on two neighbouring data sets."""
    texts = [f"a film that is {word} in every way and {word}" for word in ("dull", "bright", "long", "odd")] * 3
    if kind in (*TARGETS, "length"):
        (query, first), (_, other) = (exact_target(model, kind, rows) for rows in (texts, [None, *texts[1:]]))
        if kind == "head":  # of 131,072 numbers as many as an attack needs
            first, other = ({name: values.flatten()[:2048] for name, values in one.items()} for one in (first, other))
        return query, first, other
    noise = analytic_gaussian_sigma(epsilon=0.1, delta=1e-4, sensitivity=1.0)
    series = {"units": 40, "sensitivity": 1.0, "noise_multiplier": noise}
    if kind == "scores":
        return Query(kind="gaussian_sum", name="scores", **series), exact_scores(None), exact_scores(0)
    if kind == "counts":
        return (
            Query(kind="histogram", name="sizes", **series),
            {"counts": torch.tensor([21, 19])},
            {"counts": torch.tensor([20, 19])},
        )
    random = torch.Generator().manual_seed(1)
    if kind == "masked":
        # Of norms below 1, and the same bits on every processor.
        vectors = torch.randint(-(2**29), 2**29, (5, 24), generator=random) / torch.tensor(2.0**32, dtype=torch.float64)
        fewer = vectors.clone()
        fewer[0] = 0.0
        query = Query(kind="masked_sum", name="scores", **{**series, "units": 5})
        return query, {"vectors": vectors}, {"vectors": fewer}
    gradient = {"a": torch.randn(3000, generator=random), "b": torch.randn(7, 5, generator=random)}
    moved = {name: value + torch.randn(value.shape, generator=random) / 60 for name, value in gradient.items()}
    return Query(kind="gaussian_sum", name="fine-tuning/lm", **series), gradient, moved


def release(query, exact, charge):
    """One release through the mechanism, under a charge of its own."""
    mechanisms = Mechanisms.live(material(charge, query))
    if query.kind == "histogram":
        return {
            "counts": mechanisms.histogram(exact["counts"], sigma=query.noise_multiplier, purpose=query.name).float()
        }
    if query.kind == "masked_sum":
        settings = SecureSettings(bits=20, noise_multiplier=query.noise_multiplier, smallest_surviving=4)
        everyone = torch.ones(len(exact["vectors"]), dtype=torch.bool)
        found = mechanisms.masked_sum(exact["vectors"], settings, participating=everyone, step=0, purpose=query.name)
        return {"sum": found}
    options = {"sensitivity": query.sensitivity, "noise_multiplier": query.noise_multiplier, "step": 0}
    return mechanisms.gaussian_sum(exact, purpose=query.name, **options)


def release_in_floats(query, exact, charge):
    """What it was before: a float32 query plus float32 noise."""
    random = torch.Generator().manual_seed(charge)
    scale = query.noise_multiplier * query.sensitivity
    return {
        name: value.float() + (torch.randn(value.shape, generator=random, dtype=torch.float64) * scale).float()
        for name, value in exact.items()
    }


def flat(values):
    return torch.cat([values[name].flatten() for name in sorted(values)])


def unreachable_in_floats(released, candidate):
    """Coordinates of which no float32 noise value makes the released number of the candidate's."""
    candidate = candidate.float()
    noise = (released.double() - candidate.double()).float()
    reached = torch.zeros_like(released, dtype=torch.bool)
    up, down = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    for _ in range(3):
        reached |= candidate + noise == released
        noise = torch.nextafter(noise, up)
    noise = (released.double() - candidate.double()).float()
    for _ in range(3):
        reached |= candidate + noise == released
        noise = torch.nextafter(noise, down)
    return int((~reached).sum())


def unreachable_on_the_grid(released, candidate, grid):
    """Coordinates whose distance from the rounded candidate is not a whole number of steps."""
    steps = released.double() / grid - (candidate.double() / grid).round()
    return int((steps != steps.round()).sum())


def right_guesses(query, exact, make, attack, count):
    """How often the attack names the neighbour that was released; a coin decides between equals."""
    random, coin = np.random.default_rng(2), np.random.default_rng(3)
    candidates, right = [flat(one) for one in exact], 0
    for charge in range(count):
        truth = int(random.integers(2))
        released = flat(make(query, exact[truth], charge))
        first, second = (attack(released, candidate) for candidate in candidates)
        guess = int(coin.integers(2)) if first == second else int(second < first)
        right += guess == truth
    return right


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("models") / "random-gpt2")


@pytest.mark.parametrize("kind", KINDS)
def test_the_attack_decides_no_better_than_chance(kind, model):
    query, *exact = candidates_of(kind, model)
    assert any(not torch.equal(exact[0][name], exact[1][name]) for name in exact[0])
    candidates = [{"sum": one["vectors"].sum(0)} for one in exact] if kind == "masked" else exact
    grid = {"histogram": 1.0, "masked_sum": 2.0**-20}.get(query.kind) or grid_of(query.sensitivity)
    attacks = (unreachable_in_floats, lambda released, candidate: unreachable_on_the_grid(released, candidate, grid))
    kept = {}

    def once(query, one, charge):
        """Each charge releases once; both attacks look at the same releases."""
        if charge not in kept:
            kept[charge] = release(query, exact[0 if one is candidates[0] else 1], charge)
        return kept[charge]

    # Masked sums take long, and theirs are the same on every processor.
    releases, significance = (RELEASES // 4, 0.01) if kind == "masked" else (RELEASES, SIGNIFICANCE)
    for attack in attacks:
        right = right_guesses(query, candidates, once, attack, releases)
        assert stats.binomtest(right, releases).pvalue > significance, f"{right} of {releases}"


def test_so_many_releases_tell_an_attack_that_is_right_in_59_of_100_from_chance():
    assert stats.binomtest(RELEASES * 59 // 100, RELEASES).pvalue < SIGNIFICANCE
    assert stats.binomtest(118, 200).pvalue > 0.01, "200 releases at 0.01 would not"


@pytest.mark.parametrize("kind", [*TARGETS, "scores", "training"])
def test_the_attack_names_the_right_neighbour_where_float_noise_is_planted(kind, model):
    query, *exact = candidates_of(kind, model)
    assert right_guesses(query, exact, release_in_floats, unreachable_in_floats, PLANTED) == PLANTED


def test_on_the_grid_every_released_number_is_reachable_from_both_neighbours(model):
    query, *exact = candidates_of("label_rows", model)
    for charge in range(20):
        released = flat(release(query, exact[charge % 2], charge))
        for one in exact:
            assert unreachable_on_the_grid(released, flat(one), grid_of(query.sensitivity)) == 0
