"""The same steps on a GPU: the same masks and, for the same query, the same noise; results equal to tolerance.

The key of the noise holds the query's bytes, which differ in their last bits between devices. So weights are compared
without noise, and noise by a query that is the same on both.
"""

import pytest
import torch
from device_steps import STEPS, conditional_config, matching_config, mechanisms, target, tensors_of, trained

from understudy.compute import Compute, copied_to, running_sum
from understudy.methods.gradient_matching.queries import queries_of, schedule_of
from understudy.tasks.engine.machine import prepare_torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]

CPU, GPU = Compute("cpu"), Compute("cuda")


@pytest.fixture(autouse=True)
def as_in_a_task():
    """Deterministic algorithms, as every task asks for."""
    threads = torch.get_num_threads()
    prepare_torch(1, "cuda")
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


class Seen:
    """Keeps masks and queries, and draws as usual."""

    def __init__(self):
        self.masks, self.queries = [], []

    def observe(self, mechanism, query, draw):
        found = draw()
        if mechanism.kind == "poisson":
            self.masks.append(found["mask"].clone())
        else:
            self.queries.append({name: value.cpu().clone() for name, value in query.items()})
        return found


def close(one, other, *, share=1e-3):
    """Whether two sets of tensors are apart by at most a share of their norm."""
    assert set(one) == set(other)
    apart = sum(float((one[name].cpu().double() - other[name].cpu().double()).square().sum()) for name in one)
    whole = sum(float(value.double().square().sum()) for value in one.values())
    return apart <= share**2 * whole


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", STEPS)
def test_every_step_runs_and_repeats_bit_for_bit(name, precision):
    one, other = (STEPS[name](Compute("cuda", precision)) for _ in range(2))
    assert one.keys() == other.keys()
    for key, value in one.items():
        same = torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key]
        assert same, f"{name}: {key} differs between two runs"


@pytest.mark.parametrize(
    "changes", [{"update": "alternating"}, {"update": "joint"}, {"lora": {"rank": 0}}], ids=["lora", "joint", "all"]
)
def test_training_draws_the_same_masks_and_ends_in_the_same_weights(changes):
    config, seen, ends = conditional_config(**changes), {}, {}
    for compute in (CPU, GPU):
        seen[compute] = Seen()
        model = trained(config, compute, noise=0.0, steps=3, recorder=seen[compute]).trained.model
        ends[compute] = dict(model.state_dict())
    assert len(seen[CPU].masks) == 3
    assert all(torch.equal(*pair) for pair in zip(seen[CPU].masks, seen[GPU].masks, strict=True))
    assert close(seen[CPU].queries[0], seen[GPU].queries[0])
    # Adam's first steps turn the sign of a gradient near zero into a full step.
    assert close(ends[CPU], ends[GPU], share=1e-2)


@pytest.mark.parametrize("kind", ["head", "label_rows", "sketch"])
def test_a_target_is_the_same(kind):
    config = matching_config(target={"kind": kind, "sketch_dimension": 64})
    assert close(*(target(config, compute, noise=0.0).tensors for compute in (CPU, GPU)))


def test_one_query_gets_one_noise_wherever_it_lies():
    config = matching_config()
    planned = schedule_of(queries_of(config, n=12, epsilon=float("inf"), delta=1e-3))
    planned = planned.model_copy(update={"noise_multiplier": 1.0})
    query = {"label": torch.linspace(-1, 1, 1000, dtype=torch.float64)}

    def noised(device):
        return mechanisms(planned.queries).gaussian_sum(
            {name: value.to(device) for name, value in query.items()},
            sensitivity=planned.l2_clip_norm,
            noise_multiplier=1.0,
            step=0,
            purpose=planned.queries[0].name,
        )["label"]

    found = noised("cuda")
    assert found.device.type == "cuda"
    assert torch.equal(found.cpu(), noised("cpu"))


@pytest.mark.parametrize("name", ["classifier", "transfer", "encoder", "perplexity"])
def test_what_measures_measures_the_same(name):
    one, other = (tensors_of(STEPS[name](compute)) for compute in (CPU, GPU))
    assert close(one, other, share=1e-2)


def test_copies_go_through_pinned_memory_and_sums_are_right():
    values = torch.rand(4, 5000, dtype=torch.float64)
    there = copied_to(values, torch.device("cuda"))
    assert there.device.type == "cuda"
    torch.testing.assert_close(running_sum(there).cpu(), values.cumsum(-1), rtol=1e-12, atol=0)
