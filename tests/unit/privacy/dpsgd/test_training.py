"""The DP trainer: equal to a plain reimplementation, exact resume, empty batches, streams, refusals."""

import contextlib
import math
import shutil
import signal

import forked
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from pydantic import ValidationError
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from understudy.errors import InputError, UnderstudyError
from understudy.models import lora
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.per_example import clipped_gradient_sum
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.grid_sum import GridSum
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Query, event_of
from understudy.privacy.testing.replay import Recording
from understudy.progress import Course
from understudy.tensor_files import load_tensors

N, LENGTH, VOCABULARY = 12, 6, 17


class Model(nn.Module):
    """A language model and a head on its hidden states, as in multitask training."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        lm = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
                num_attention_heads=2, tie_word_embeddings=True,
            )
        )  # fmt: skip
        self.head = nn.Linear(8, 2)
        with torch.no_grad():
            for parameter in [*lm.parameters(), *self.head.parameters()]:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        self.lm = lora.attach(lm, rank=2, alpha=4, generator=generator)
        self.eval()


def lm_loss(model, batch):
    logits = model.lm(input_ids=batch["input_ids"]).logits[:, :-1]
    return functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none").mean(1)


def head_loss(model, batch):
    hidden = model.lm.base_model.model.model(input_ids=batch["input_ids"]).last_hidden_state
    return functional.cross_entropy(model.head(hidden[:, -1]), batch["label"], reduction="none")


def data(n=N):
    generator = torch.Generator().manual_seed(1)
    valid = torch.ones(n, dtype=torch.bool)
    valid[3] = False
    return {
        "input_ids": torch.randint(0, VOCABULARY, (n, LENGTH), generator=generator),
        "label": torch.randint(0, 2, (n,), generator=generator),
        "valid": valid,
    }


def make_plan(**changes):
    streams = (
        Stream(name="lm", l2_clip_norm=0.5, noise_multiplier=0.8),
        Stream(name="discriminator", l2_clip_norm=0.2, noise_multiplier=1.3),
    )
    return DpSgdPlan(**{"n": N, "sampling_probability": 0.4, "steps": 6, "streams": streams, **changes})


def material(plan, secret=b"s" * 32):
    """Key material of a charge that paid for the plan."""
    return KeyMaterial(secret, "charge-1", b"0" * 16, plan.queries)


def objectives(model, **changes):
    adapters = {name: p for name, p in lora.trainable_parameters(model).items() if "lora" in name}
    head = {f"head.{name}": p for name, p in model.head.named_parameters()}
    return {
        "lm": Objective(lm_loss, adapters, 0.01, "linear"),
        "discriminator": Objective(head_loss, {**adapters, **head}, 0.03),
        **changes,
    }


def run(plan=None, *, model=None, micro_batch=3, checkpoint=None, progress=None, averaging=0.0, secret=b"s" * 32):
    model, plan = model or Model(), plan or make_plan()
    chosen = {stream.name: objectives(model)[stream.name] for stream in plan.streams}
    train(
        model,
        plan=plan,
        objectives=chosen,
        data=data(plan.n),
        mechanisms=Mechanisms.live(material(plan, secret)),
        micro_batch=micro_batch,
        averaging=averaging,
        course=Course(checkpoint, progress),
    )
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def run_with(model, plan, objectives, *, micro_batch=4, recorder=None):
    """Train a given model on the rows that every test has."""
    mechanisms = Mechanisms(material(plan), recorder=recorder)
    train(model, plan=plan, objectives=objectives, data=data(), mechanisms=mechanisms, micro_batch=micro_batch)


def equal(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


def plain_reimplementation(plan):
    """Algorithm 1 written out with plain autograd and one optimizer per stream."""
    model, rows, mechanisms = Model(), data(), Mechanisms.live(material(plan))
    parts = objectives(model)
    optimizers = {
        name: torch.optim.Adam(part.parameters.values(), lr=part.learning_rate) for name, part in parts.items()
    }
    for step in range(plan.steps):
        mask = mechanisms.poisson(step=step, n=plan.n, probability=plan.sampling_probability, purpose=plan.name)
        updates = {}
        for stream in plan.streams:
            part = parts[stream.name]
            total = {name: torch.zeros_like(p) for name, p in part.parameters.items()}
            for slot in (mask & rows["valid"]).nonzero().flatten():
                one = {name: value[slot : slot + 1] for name, value in rows.items()}
                gradient = torch.autograd.grad(part.loss(model, one)[0], list(part.parameters.values()))
                norm = torch.cat([g.flatten() for g in gradient]).norm()
                for name, g in zip(total, gradient, strict=True):
                    total[name] += g * min(1.0, stream.l2_clip_norm / float(norm))
            # the noise of the trained run depends on its exact bytes, so only zero noise can be compared
            updates[stream.name] = {name: value / plan.expected_batch for name, value in total.items()}
        for stream in plan.streams:
            part, optimizer = parts[stream.name], optimizers[stream.name]
            decay = 1 - step / plan.steps if part.schedule == "linear" else 1
            optimizer.param_groups[0]["lr"] = part.learning_rate * decay
            for name, parameter in part.parameters.items():
                parameter.grad = updates[stream.name][name]
            optimizer.step()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def noiseless(plan):
    streams = tuple(stream.model_copy(update={"noise_multiplier": 0.0}) for stream in plan.streams)
    return plan.model_copy(update={"streams": streams})


@pytest.fixture(scope="module")
def uninterrupted():
    return run()


@pytest.fixture(scope="module")
def without_noise():
    return run(noiseless(make_plan()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder and the weights of a training that kept checkpoints."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, run(checkpoint=TrainingCheckpoint(folder, every=4))


def test_equals_a_plain_reimplementation_without_noise(without_noise):
    found, expected = without_noise, plain_reimplementation(noiseless(make_plan()))
    start = {name: p.detach() for name, p in Model().named_parameters()}
    moved = [name for name in found if not torch.equal(found[name], start[name])]
    assert all("lora" in name or name.startswith("head") for name in moved)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5)


def test_repeats_bit_for_bit_and_noise_matters(uninterrupted, without_noise):
    assert equal(uninterrupted, run())
    assert not equal(uninterrupted, without_noise)
    assert not equal(uninterrupted, run(secret=b"t" * 32))


def test_micro_batches_change_only_rounding():
    plan = noiseless(make_plan())
    one, two = run(plan, micro_batch=1), run(plan, micro_batch=16)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("micro_batch", "runs"), [(1, [32, 18]), (5, [30, 20]), (16, [32, 32]), (20, [20, 20, 20])])
def test_no_more_rows_are_added_up_in_floats_than_the_bound_is_proven_for(micro_batch, runs, monkeypatch):
    found, add = [], GridSum.add

    def seen(self, values, *, units):
        found.append(units)
        add(self, values, units=units)

    monkeypatch.setattr(GridSum, "add", seen)
    stream = Stream(name="lm", l2_clip_norm=0.5, noise_multiplier=0.0)
    run(DpSgdPlan(n=50, sampling_probability=1.0, steps=1, streams=(stream,)), micro_batch=micro_batch)
    assert found == runs
    assert max(found) <= ROWS_IN_FLOATS


def test_a_sum_goes_on_in_place_and_takes_no_more_rows_than_floats_may_add_up():
    model, rows = Model(), data(40)
    adapters = {name: p for name, p in lora.trainable_parameters(model).items() if "lora" in name}

    def summed(some, **more):
        batch = {name: value[some] for name, value in rows.items()}
        return clipped_gradient_sum(model, adapters, lm_loss, batch, l2_clip_norm=0.5, valid=batch["valid"], **more)

    one, both = summed(slice(0, 7)), summed(slice(0, 12))
    went_on = summed(slice(7, 12), added_to=one)
    for name in adapters:
        assert went_on[name] is one[name]
        torch.testing.assert_close(went_on[name], both[name], rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="at most 32 examples"):
        summed(slice(0, 40), added_to=went_on)


@pytest.mark.parametrize("before", [False, True])
def test_training_is_in_deterministic_mode_and_puts_back_what_was(before):
    outside, within = torch.are_deterministic_algorithms_enabled(), []
    torch.use_deterministic_algorithms(before)

    def loss(model, batch):
        within.append(torch.are_deterministic_algorithms_enabled())
        return lm_loss(model, batch)

    model = Model()
    plan = make_plan(steps=1, streams=make_plan().streams[:1])
    try:
        run_with(model, plan, {"lm": Objective(loss, objectives(model)["lm"].parameters, 0.01)})
        assert within
        assert all(within)
        assert torch.are_deterministic_algorithms_enabled() == before
        assert torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(outside)


def test_global_random_state_is_neither_read_nor_changed():
    results = []
    for seed in (1, 2):
        model = Model()
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        train(
            model, plan=make_plan(), objectives=objectives(model), data=data(),
            mechanisms=Mechanisms.live(material(make_plan())), micro_batch=3,
        )  # fmt: skip
        assert torch.equal(torch.random.get_rng_state(), before)
        results.append(dict(model.named_parameters()))
    assert equal(*results)


AVERAGED = 0.3  # below what the decay of five steps and more is held to


@pytest.fixture(scope="module")
def averaged():
    return run(averaging=AVERAGED)


def test_the_average_is_that_of_all_steps_weights_under_their_shares(uninterrupted, averaged):
    """Against shares that are written out: of the first weights and of those after each step."""
    model = Model()
    trained = {name: p for name, p in model.named_parameters() if "lora" in name or name.startswith("head")}
    seen = [{name: p.detach().double() for name, p in trained.items()}]
    last = run(model=model, progress=lambda *_: seen.append({name: p.detach().double() for name, p in trained.items()}))
    assert equal(last, uninterrupted)
    decays = [1 / 10, 2 / 11, 3 / 12, 0.3, 0.3, 0.3]
    shares = [math.prod(decays), *((1 - decays[t]) * math.prod(decays[t + 1 :]) for t in range(6))]
    assert sum(shares) == pytest.approx(1)
    for name in trained:
        expected = sum(share * each[name] for share, each in zip(shares, seen, strict=True))
        torch.testing.assert_close(averaged[name].double(), expected, rtol=1e-5, atol=1e-7)
        assert not torch.equal(averaged[name], last[name])


def test_averaging_changes_no_step(tmp_path, finished):
    """What noise the later steps get is a function of the weights, so they are those of the last step, not averaged."""
    run(checkpoint=TrainingCheckpoint(tmp_path, every=4), averaging=AVERAGED)
    with_average, without = (load_tensors(folder / "step-000000006.safetensors") for folder in (tmp_path, finished[0]))
    assert equal(without, with_average)
    assert {name for name in with_average if name not in without} == {
        name.replace("weight/", "average/", 1) for name in without if name.startswith("weight/")
    }


def test_a_decay_that_averages_nothing_is_refused():
    for decay in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match="averaging="):
            run(averaging=decay)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_an_average_goes_on_where_it_was(tmp_path, averaged, stop):
    def interrupt(done, steps):
        if done == stop:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(checkpoint=TrainingCheckpoint(tmp_path, every=2), progress=interrupt, averaging=AVERAGED)
    for _ in range(2):  # the second finds a training that is finished
        assert equal(run(checkpoint=TrainingCheckpoint(tmp_path, every=2), averaging=AVERAGED), averaged)


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, uninterrupted, stop):
    expected = uninterrupted

    def interrupt(done, steps):
        if done == stop:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(checkpoint=TrainingCheckpoint(tmp_path, every=2), progress=interrupt)
    seen = []
    resumed = run(checkpoint=TrainingCheckpoint(tmp_path, every=2), progress=lambda done, steps: seen.append(done))
    assert equal(resumed, expected)
    assert seen == list(range(stop // 2 * 2 + 1, 7))


def test_a_finished_training_is_not_computed_again(tmp_path, finished):
    folder, first = finished
    kept = TrainingCheckpoint(shutil.copytree(folder, tmp_path / "again"), every=4)
    seen = []
    again = run(checkpoint=kept, progress=lambda done, steps: seen.append(done))
    assert equal(first, again)
    assert seen == []


SMALL_TRAINING = """
import time
import torch
from torch import nn
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.privacy.dpsgd.chunks import ROWS_IN_FLOATS
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.training import Objective, train
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.progress import Course

generator = torch.Generator().manual_seed(0)
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
parameters = dict(model.named_parameters())
data = {"x": torch.randn(20, 6, generator=generator), "valid": torch.ones(20, dtype=torch.bool)}

def progress(done, steps):
    pipe.send(done)
    time.sleep(pause)

plan = DpSgdPlan(
    n=20, sampling_probability=0.5, steps=30,
    streams=[Stream(name=name, l2_clip_norm=1.0, noise_multiplier=0.7) for name in ("a", "b")],
)
train(
    model,
    plan=plan,
    objectives={
        "a": Objective(lambda m, b: m(b["x"]).square().sum(1), parameters, 0.01, "linear"),
        "b": Objective(lambda m, b: m(b["x"])[:, 0], parameters, 0.02),
    },
    data=data,
    mechanisms=Mechanisms.live(KeyMaterial(b"s" * 32, "charge-1", b"0" * 16, plan.queries)),
    micro_batch=4,
    course=Course(TrainingCheckpoint(folder, every=1), progress),
)
"""


def test_killed_process_resumes_to_the_same_bytes(tmp_path):
    """SIGKILL in the middle of training, then a new process: same checkpoint bytes as without the kill."""

    def start(folder, pause=0):
        return forked.start(SMALL_TRAINING, folder=folder, pause=pause)

    def steps_of(process, pipe):
        steps = []
        with contextlib.suppress(EOFError):
            while True:
                steps.append(pipe.recv())
        assert process.wait() == 0
        return steps

    (killed, pipe), whole = start(tmp_path / "killed", pause=0.1), start(tmp_path / "whole")
    while pipe.recv() < 5:
        pass
    killed.kill()
    assert killed.returncode == -signal.SIGKILL
    assert 5 <= TrainingCheckpoint(tmp_path / "killed").load()[0] < 30
    steps = [steps_of(*whole), steps_of(*start(tmp_path / "killed"))]
    assert len(steps[0]) == 30
    assert len(steps[1]) < 30
    final = "step-000000030.safetensors"
    assert (tmp_path / "killed" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()


def test_checkpoint_holds_weights_optimizer_and_nothing_else(finished):
    folder, _ = finished
    tensors = load_tensors(folder / "step-000000006.safetensors")
    assert {name.split("/")[0] for name in tensors} == {"weight", "adam"}
    assert {name.rsplit("/", 1)[1] for name in tensors if name.startswith("adam")} == {
        "step",
        "exp_avg",
        "exp_avg_sq",
    }
    assert all("lora" in name or "head" in name for name in tensors)


def test_empty_batches_are_steps_of_noise():
    calls = []

    def loss(model, batch):
        calls.append(len(batch["valid"]))
        return lm_loss(model, batch)

    model, plan = Model(), make_plan(sampling_probability=1e-9, steps=2, streams=make_plan().streams[:1])
    start = {name: p.detach().clone() for name, p in lora.trainable_parameters(model).items() if "lora" in name}
    objective = Objective(loss, {name: p for name, p in model.named_parameters() if name in start}, 0.01)
    run_with(model, plan, {"lm": objective})
    assert calls == []
    assert all(not torch.equal(objective.parameters[name], start[name]) for name in start)


def test_the_loss_sees_fixed_shapes_slot_and_step():
    seen, steps = [], []

    def loss(model, batch):
        seen.append({name: tuple(value.shape) for name, value in batch.items()})
        rows = data()["input_ids"]
        assert torch.equal(batch["input_ids"], rows[batch["slot"]])
        steps.append(int(batch["step"]))
        return lm_loss(model, batch)

    model, plan = Model(), make_plan(steps=3, streams=make_plan().streams[:1])
    objective = Objective(loss, objectives(model)["lm"].parameters, 0.01)
    run_with(model, plan, {"lm": objective}, micro_batch=5)
    assert steps == sorted(steps)
    assert set(steps) == {0, 1, 2}
    shapes = {"input_ids": (5, LENGTH), "label": (5,), "valid": (5,), "slot": (5,), "step": ()}
    assert all(found == shapes for found in seen)


def test_gradients_of_all_streams_are_taken_at_the_same_weights():
    """Two streams with the same loss and no noise: the second must not see the first one's update."""
    seen = []

    class Spy:
        def observe(self, mechanism, query, draw):
            output = draw()
            if mechanism.kind == "gaussian_sum":
                seen.append({name: value.clone() for name, value in query.items()})
            return output

    model = Model()
    plan = make_plan(
        steps=2,
        streams=tuple(Stream(name=name, l2_clip_norm=0.5, noise_multiplier=0.0) for name in ("a", "b")),
    )
    objective = Objective(lm_loss, objectives(model)["lm"].parameters, 0.05)
    run_with(model, plan, {"a": objective, "b": objective}, recorder=Spy())
    assert equal(seen[0], seen[1])
    assert equal(seen[2], seen[3])
    assert not equal(seen[0], seen[2])


@pytest.mark.parametrize(
    ("epochs", "batch_size", "probability", "steps"), [(3, 10, 0.4, 8), (2, 100, 1.0, 2), (0.1, 10, 0.4, 1)]
)
def test_a_training_of_epochs_sees_every_row_at_least_so_often(epochs, batch_size, probability, steps):
    streams = make_plan().streams
    plan = DpSgdPlan.of_epochs(epochs, batch_size, n=25, name="train", streams=streams)
    assert (plan.sampling_probability, plan.steps, plan.streams) == (probability, steps, streams)


def test_event_is_one_sampled_gaussian_of_the_combined_noise():
    combined = (0.8**-2 + 1.3**-2) ** -0.5
    event = make_plan().event
    assert isinstance(event, SelfComposedDpEvent)
    assert event.count == 6
    assert isinstance(event.event, PoissonSampledDpEvent)
    assert event.event.sampling_probability == 0.4
    assert event.event.event == GaussianDpEvent(pytest.approx(combined))
    assert make_plan().expected_batch == pytest.approx(4.8)


def test_the_list_of_queries_has_one_per_stream_on_one_mask():
    plan = make_plan()
    common = {"kind": "gaussian_sum", "units": N, "steps": 6, "batch": "train", "sampling_probability": 0.4}
    assert plan.queries == (
        Query(name="train/lm", sensitivity=0.5, noise_multiplier=0.8, **common),
        Query(name="train/discriminator", sensitivity=0.2, noise_multiplier=1.3, **common),
    )
    assert event_of(plan.queries) == plan.event
    assert [query.name for query in make_plan(name="other").queries] == ["other/lm", "other/discriminator"]
    assert {query.batch for query in make_plan(name="other").queries} == {"other"}


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({"steps": 7}, 6 * ["poisson", "gaussian_sum", "gaussian_sum"]),
        ({"n": N - 1}, []),
        ({"sampling_probability": 0.5}, []),
        ({"name": "other"}, []),
        ({"streams": (Stream(name="lm", l2_clip_norm=0.5, noise_multiplier=0.79),)}, ["poisson"]),
        ({"streams": (Stream(name="lm", l2_clip_norm=0.51, noise_multiplier=0.8),)}, ["poisson"]),
        ({"streams": (Stream(name="third", l2_clip_norm=0.5, noise_multiplier=0.8),)}, ["poisson"]),
    ],
)
def test_a_training_that_was_not_charged_stops_before_it_draws_what_differs(changes, drawn):
    plan, recording, model = make_plan(**changes), Recording(), Model()
    parts = objectives(model) | {"third": objectives(model)["lm"]}
    with pytest.raises(UnderstudyError, match="charge-1"):
        train(
            model,
            plan=plan,
            objectives={stream.name: parts[stream.name] for stream in plan.streams},
            data=data(plan.n),
            mechanisms=Mechanisms(material(make_plan()), recorder=recording),
            micro_batch=3,
        )
    assert [call.mechanism.kind for call in recording.calls] == drawn


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling_probability": 0.0},
        {"sampling_probability": 1.1},
        {"steps": 0},
        {"streams": ()},
        {"streams": (Stream(name="a", l2_clip_norm=1, noise_multiplier=1),) * 2},
        {"batch_size": 3},
    ],
)
def test_senseless_plans_are_refused(changes):
    with pytest.raises(ValidationError):
        make_plan(**changes)


def test_parts_that_do_not_fit_are_refused_before_anything_is_drawn():
    model, plan = Model(), make_plan()
    options = {"plan": plan, "mechanisms": Mechanisms.live(material(plan)), "micro_batch": 4}
    with pytest.raises(InputError, match="streams"):
        train(model, objectives={"lm": objectives(model)["lm"]}, data=data(), **options)
    with pytest.raises(InputError, match="n=12"):
        train(model, objectives=objectives(model), data=data(5), **options)
    rows = {name: values for name, values in data().items() if name != "valid"}
    with pytest.raises(InputError, match="valid"):
        train(model, objectives=objectives(model), data=rows, **options)
    with pytest.raises(InputError, match="micro_batch=0"):
        train(model, objectives=objectives(model), data=data(), **{**options, "micro_batch": 0})
    model.noisy = nn.Dropout(0.1)
    model.train()
    with pytest.raises(InputError, match="dropout"):
        train(model, objectives=objectives(model), data=data(), **options)
