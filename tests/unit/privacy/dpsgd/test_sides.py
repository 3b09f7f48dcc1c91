"""Two halves of a micro-batch, each on a thread and with a copy of the model around the same weights."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from understudy.errors import InputError
from understudy.privacy.dpsgd import sides as module
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.sides import side_by_side
from understudy.privacy.dpsgd.training import Objective, _clipped_sum, _tapped, train
from understudy.privacy.grid import grid_of
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms

ROWS, WIDTH = 23, 6


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == seen_by_a_new_thread() == 2
    torch.set_num_threads(before)


def seen_by_a_new_thread() -> int:
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(torch.get_num_threads).result()


def make_model() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, 2))
    net.register_buffer("offset", torch.ones(2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net


def loss(model: nn.Module, batch) -> torch.Tensor:
    return (model(batch["x"])[:, 0] - batch["y"]).square() * model.offset[0]


def rows() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    valid = torch.ones(ROWS, dtype=torch.bool)
    valid[4] = False
    x, y = torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, generator=generator)
    return {"x": x, "y": y, "valid": valid}


def trained(*, noise_multiplier=0.0, loss_fn=loss, micro_batch=8, model=None) -> dict[str, torch.Tensor]:
    """The weights after some steps."""
    model = model or make_model()
    stream = Stream(name="lm", l2_clip_norm=0.5, noise_multiplier=noise_multiplier)
    plan = DpSgdPlan(n=ROWS, sampling_probability=0.7, steps=4, streams=(stream,))
    train(
        model,
        plan=plan,
        objectives={"lm": Objective(loss_fn, dict(model.named_parameters()), 0.05)},
        data=rows(),
        mechanisms=Mechanisms.live(KeyMaterial(b"s" * 32, "charge-1", b"0" * 16, plan.queries)),
        micro_batch=micro_batch,
    )
    assert all(parameter.requires_grad for parameter in model.parameters())
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_both_halves_are_computed_on_threads_of_their_own_and_sum_to_what_one_thread_sums():
    seen = []

    def noting(model, batch):
        seen.append((threading.get_ident(), torch.get_num_threads(), len(batch["y"])))
        assert not any(parameter.requires_grad for parameter in model.parameters())
        return loss(model, batch)

    two = trained(loss_fn=noting)
    assert {(threads, rows) for _, threads, rows in seen} == {(1, 4)}
    assert threading.get_ident() not in {thread for thread, _, _ in seen}
    torch.set_num_threads(1)
    seen.clear()
    one = trained(loss_fn=noting)
    assert {rows for _, _, rows in seen} == {8}
    torch.set_num_threads(2)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-5, atol=1e-6)
        assert not torch.equal(weight, dict(make_model().named_parameters())[name])


def test_a_run_on_as_many_threads_repeats_bit_for_bit_with_noise():
    one, other = trained(noise_multiplier=0.8), trained(noise_multiplier=0.8)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_odd_micro_batch_leaves_out_no_row():
    two = trained(micro_batch=7)
    torch.set_num_threads(1)
    one = trained(micro_batch=7)
    torch.set_num_threads(2)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-5, atol=1e-6)


def test_copies_hold_the_same_weights_and_buffers_in_modules_of_their_own():
    model = make_model()
    with side_by_side(model, list(model.parameters()), rows=8) as sides:
        (one, first), (other, second) = sides.parts
        assert (first, second) == (slice(0, 4), slice(4, 8))
        assert one is model
        assert not {id(part) for part in one.modules()} & {id(part) for part in other.modules()}
        for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
            assert mine is theirs
        assert one.offset is other.offset


def test_an_error_of_one_half_waits_for_the_other_and_leaves_the_model_as_it_was():
    model, ended = make_model(), []

    def failing(side, batch):
        if side is model:
            raise RuntimeError("one half")
        time.sleep(0.3)
        found = loss(side, batch)
        ended.append(not any(parameter.requires_grad for parameter in side.parameters()))
        return found

    with pytest.raises(RuntimeError, match="one half"):
        trained(loss_fn=failing, model=model)
    assert ended == [True]
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
    assert not [module for module in model.modules() if "forward" in vars(module)]


def test_a_loss_that_uses_another_model_than_its_own_is_refused():
    """Half of it through the other copy: gradients would count for other examples, and silently."""
    model = make_model()
    both = threading.Barrier(2)

    def closed_over(side, batch):
        both.wait(timeout=30)
        states = model[1](model[0](batch["x"]))
        both.wait(timeout=30)
        return (side[2](states)[:, 0] - batch["y"]).square()

    with pytest.raises(InputError, match="no model but the one that it is given"):
        trained(loss_fn=closed_over, model=model)


def test_no_row_moves_the_sum_by_more_than_the_clip_norm():
    model = make_model()
    objective = Objective(loss, dict(model.named_parameters()), 0.05)
    everyone = torch.ones(8, dtype=torch.bool)

    def exact(valid, x):
        batch = {"x": x, "y": rows()["y"][:8], "valid": valid}
        with side_by_side(model, list(model.parameters()), rows=8) as sides:
            assert len(sides.parts) == 2
            steps = _clipped_sum(sides, _tapped(sides, objective), objective, [batch], 0.5)
        return torch.cat([steps[name].flatten() for name in sorted(steps)]).double() * grid_of(0.5)

    x = rows()["x"][:8] * 10
    whole = exact(everyone, x)
    for row in range(8):
        without = everyone.clone()
        without[row] = False
        other = x.clone()
        other[row] = 7.0
        assert torch.equal(exact(without, x), exact(without, other)), "what a null row holds does not matter"
        assert 0.4 < float((whole - exact(without, x)).norm()) <= 0.5 * (1 + 1e-6)


def test_a_parameter_of_two_streams_counts_once(monkeypatch):
    model = make_model()
    parameters = list(model.parameters())
    monkeypatch.setattr(module, "_MOST_TRAINED", sum(p.numel() for p in parameters))
    with side_by_side(model, parameters * 2, rows=8) as sides:
        assert len(sides.parts) == 2


@pytest.mark.parametrize(
    ("rows_of_a_pass", "most", "threads"), [(3, 1 << 23, 2), (8, 10, 2), (8, 1 << 23, 1)], ids=["few", "large", "one"]
)
def test_one_side_with_few_rows_many_weights_or_one_thread(monkeypatch, rows_of_a_pass, most, threads):
    monkeypatch.setattr(module, "_MOST_TRAINED", most)
    torch.set_num_threads(threads)
    model = make_model()
    with side_by_side(model, list(model.parameters()), rows=rows_of_a_pass) as sides:
        assert sides.pool is None
        assert sides.apply(lambda side, rows: (side is model, rows)) == [(True, slice(0, rows_of_a_pass))]
    torch.set_num_threads(2)


def test_a_model_on_another_device_has_one_side():
    model = make_model().to("meta")
    with side_by_side(model, list(model.parameters()), rows=8) as sides:
        assert len(sides.parts) == 1
