"""The replay harness finds nothing in a correct method and catches every planted fault."""

import hashlib

import pytest
import torch
from tests_support import scale_noise
from torch import nn
from torch.nn import functional

from understudy.privacy import mechanisms as mechanisms_module
from understudy.privacy.dpsgd import training
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.dpsgd.training import Objective
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Query, queries_to_json
from understudy.privacy.testing.replay import (
    Observation,
    Recording,
    neighbour_pairs,
    recording,
    replay_check,
    unrelated_data,
)
from understudy.progress import Course

N, LENGTH, VOCABULARY, LABELS = 24, 5, 19, 3
RARE_TOKEN, RARE_LABEL = 18, 2
PLAN = DpSgdPlan(
    n=N,
    sampling_probability=0.5,
    steps=6,
    streams=(
        Stream(name="lm", l2_clip_norm=0.3, noise_multiplier=0.7),
        Stream(name="discriminator", l2_clip_norm=0.1, noise_multiplier=1.1),
    ),
)


def histogram(name, *, sigma=2.0):
    return Query(kind="histogram", name=name, units=N, sensitivity=1.0, noise_multiplier=sigma)


def material(*queries):
    """Key material of a charge that paid for the queries."""
    return KeyMaterial(b"s" * 32, "charge-1", b"0" * 16, queries)


class Net(nn.Module):
    """Two random layers: an embedding and a linear layer, and a head for the label."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY)
        self.head = nn.Linear(6, LABELS)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))


def lm_loss(model, batch):
    logits = model.out(torch.tanh(model.embedding(batch["input_ids"][:, :-1])))
    losses = functional.cross_entropy(logits.transpose(1, 2), batch["input_ids"][:, 1:], reduction="none")
    return (losses * batch["attention_mask"][:, 1:]).sum(1) / LENGTH


train_loss = lm_loss


def head_loss(model, batch):
    hidden = (model.embedding(batch["input_ids"]) * batch["attention_mask"][..., None]).mean(1)
    return functional.cross_entropy(model.head(hidden), batch["label"], reduction="none")


def rows():
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, LENGTH, (N,), generator=generator)  # nobody has the maximal length
    mask = (torch.arange(LENGTH)[None] < lengths[:, None]).long()
    ids = torch.randint(0, RARE_TOKEN, (N, LENGTH), generator=generator) * mask
    label = torch.randint(0, RARE_LABEL, (N,), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "label": label, "valid": torch.ones(N, dtype=torch.bool)}


def method(data, make_mechanisms, *, fault="", keep=()):
    """Train, take class sizes, write text: a small method with all its outputs, and faults to plant."""
    queries = (*PLAN.queries, histogram("sizes"))
    mechanisms, model, log = make_mechanisms(material(*queries)), Net(), []
    if fault == "dropped invalid row":
        data = {name: values[data["valid"]] for name, values in data.items()}
        log.append(f"rows={len(data['valid'])}")
    named = dict(model.named_parameters())
    candidates = []

    def progress(done, steps):
        log.append(f"step {done} of {steps}")
        if fault == "checkpoint chosen on private loss":
            with torch.no_grad():
                loss = lm_loss(model, data)[data["valid"]].mean()
            candidates.append((loss.item(), {name: p.detach().clone() for name, p in named.items()}))

    training.train(
        model,
        plan=PLAN,
        objectives={
            "lm": Objective(train_loss, {k: named[k] for k in ("embedding.weight", "out.weight", "out.bias")}, 0.05),
            "discriminator": Objective(head_loss, {k: named[k] for k in ("embedding.weight", "head.weight")}, 0.05),
        },
        data=data,
        mechanisms=mechanisms,
        micro_batch=N,
        course=Course(progress=progress),
    )
    if candidates:
        model.load_state_dict(min(candidates, key=lambda pair: pair[0])[1])
    counts = torch.bincount(data["label"][data["valid"]], minlength=LABELS)
    sizes = counts if fault == "class count read" else mechanisms.histogram(counts, sigma=2.0, purpose="sizes")
    length = int(data["attention_mask"].sum(1).max()) if fault == "length taken from rows" else LENGTH
    with torch.no_grad():
        text = [int(size) % VOCABULARY for size in sizes]
        for _ in range(length):
            text.append(int(model.out(torch.tanh(model.embedding.weight[text[-1]])).argmax()))
    name = "model"
    if fault == "digest leaked":
        name = hashlib.sha256(data["input_ids"].numpy().tobytes()).hexdigest()[:12]
    weights = torch.cat([p.detach().flatten() for p in named.values()]).numpy().tobytes()
    noise = "charges" if fault == "noise read from rows" and int(data["valid"].sum()) < N else "charge"
    visible = {
        name: weights,
        "synthetic": repr(text).encode(),
        "sizes": repr(sizes.tolist()).encode(),
        "log": "\n".join(log).encode(),
    }
    return Observation(visible=visible, charges=(f"{noise} {queries_to_json(queries)}",))


def check(pair, *, fault=""):
    return replay_check(
        lambda data, make_mechanisms: method(data, make_mechanisms, fault=fault),
        data=pair.data,
        neighbour=pair.neighbour,
        forced=(pair.slot,),
        unrelated=unrelated_data(rows(), rare_token=RARE_TOKEN),
    )


def pairs(slots=(4,), kinds=("plain", "extreme", "empty", "rare_class")):
    found = neighbour_pairs(rows(), slots=slots, rare_token=RARE_TOKEN, rare_label=RARE_LABEL)
    return [pair for pair in found if pair.kind in kinds]


@pytest.mark.parametrize("pair", pairs((4, 17)), ids=lambda pair: f"{pair.kind}-{pair.slot}")
def test_a_correct_method_passes(pair):
    report = check(pair)
    assert report.faults == ()
    assert 0 < report.distance_real <= report.distance_forced
    if pair.kind == "extreme":
        assert report.distance_forced > 0.99, "the clip is active, so the query moves by all of its sensitivity"


@pytest.mark.parametrize(
    "fault",
    [
        "length taken from rows",
        "class count read",
        "checkpoint chosen on private loss",
        "digest leaked",
        "dropped invalid row",
        "noise read from rows",
    ],
)
def test_planted_faults_of_a_method_are_caught(fault):
    faults = [found for pair in pairs(kinds=("plain", "extreme")) for found in check(pair, fault=fault).faults]
    expected = {
        "length taken from rows": "synthetic",
        "class count read": "sizes",
        "checkpoint chosen on private loss": "'model' differs",
        "digest leaked": "differs",
        "dropped invalid row": "rows|expected tensors of n=24",
        "noise read from rows": "charges differ",
    }[fault]
    assert any(part in found for found in faults for part in expected.split("|")), faults


def test_a_removed_clip_is_caught_in_the_forced_pass_even_if_the_slot_is_never_drawn(monkeypatch):
    exact = training.clipped_gradient_sum

    def unclipped(*arguments, **options):
        return exact(*arguments, **{**options, "l2_clip_norm": 1e9})

    never = min(range(N), key=lambda slot: drawn(slot))
    (pair,) = pairs((never,), ("extreme",))
    monkeypatch.setattr(training, "clipped_gradient_sum", unclipped)
    report = check(pair)
    assert any("forced mask" in fault for fault in report.faults)
    assert report.distance_forced > 2


def drawn(slot):
    mechanisms = mechanisms_module.Mechanisms.live(material(*PLAN.queries))
    masks = [mechanisms.poisson(step=step, n=N, probability=0.5, purpose="train") for step in range(PLAN.steps)]
    return sum(bool(mask[slot]) for mask in masks)


def test_an_uncounted_pass_is_caught(monkeypatch):
    """Each row enters twice: every contribution is clipped, yet the sum moves by twice the sensitivity."""
    exact = training._micro_batches
    monkeypatch.setattr(training, "_micro_batches", lambda *a, **k: [*exact(*a, **k), *exact(*a, **k)])
    (pair,) = pairs(kinds=("extreme",))
    assert check(pair).distance_forced == pytest.approx(2, rel=1e-3)


def test_a_null_row_that_still_counts_is_caught(monkeypatch):
    exact = training.clipped_gradient_sum

    def counting(*arguments, valid, **options):
        return exact(*arguments, valid=torch.ones_like(valid), **options)

    def unmasked(model, batch):
        return lm_loss(model, {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])})

    (pair,) = pairs(kinds=("extreme",))
    monkeypatch.setitem(globals(), "train_loss", unmasked)
    monkeypatch.setattr(training, "clipped_gradient_sum", counting)
    assert check(pair).distance_forced > 1.1


@pytest.mark.parametrize("factor", [0.0, 2 / 3, 3 / 2])
def test_wrong_noise_is_caught(monkeypatch, factor):
    scale_noise(monkeypatch, factor)
    (pair,) = pairs(kinds=("plain",))
    assert any("times what was declared" in fault for fault in check(pair).faults)


def test_noise_skipped_in_one_step_is_caught(monkeypatch):
    exact, calls = mechanisms_module.each_block, []

    def skipping(key, size, *, scale, use):
        calls.append(size)
        exact(key, size, scale=scale if len(calls) != 5 else 0.0, use=use)

    monkeypatch.setattr(mechanisms_module, "each_block", skipping)
    (pair,) = pairs(kinds=("plain",))
    assert any("step=2 purpose='train/lm': noise is 0 times" in fault for fault in check(pair).faults)


def test_noise_skipped_by_the_caller_is_caught(monkeypatch):
    """The mechanism interface is asked, but the exact sum is used."""
    exact = mechanisms_module.Mechanisms.gaussian_sum

    def ignored(self, query, **options):
        exact(self, query, **options)
        return query

    monkeypatch.setattr(mechanisms_module.Mechanisms, "gaussian_sum", ignored)
    (pair,) = pairs(kinds=("extreme",))
    assert any("'model' differs" in fault for fault in check(pair).faults)


def test_zero_noise_is_said_unless_expected(monkeypatch):
    silent = tuple(stream.model_copy(update={"noise_multiplier": 0.0}) for stream in PLAN.streams)
    monkeypatch.setitem(globals(), "PLAN", PLAN.model_copy(update={"streams": silent}))
    (pair,) = pairs(kinds=("plain",))
    assert any("no noise" in fault for fault in check(pair).faults)
    report = replay_check(method, data=pair.data, neighbour=pair.neighbour, forced=(pair.slot,), noiseless=True)
    assert report.faults == ()


@pytest.mark.parametrize("shared", ["step", "purpose"])
def test_noise_shared_between_steps_or_streams_is_caught(monkeypatch, shared):
    exact = mechanisms_module.derive_key

    def forgetful(secret, **parts):
        if "gaussian" in parts["purpose"]:
            parts = {**parts, shared: 0 if shared == "step" else "gaussian_sum", "query_digest": b""}
        return exact(secret, **parts)

    monkeypatch.setattr(mechanisms_module, "derive_key", forgetful)
    (pair,) = pairs(kinds=("plain",))
    assert any("the noise is dependent" in fault for fault in check(pair).faults)


def test_noise_that_depends_on_the_query_is_caught(monkeypatch):
    exact = mechanisms_module._noised
    monkeypatch.setattr(
        mechanisms_module,
        "_noised",
        lambda steps, key, **asked: exact({k: v * 19 // 10 for k, v in steps.items()}, key, **asked),
    )
    (pair,) = pairs(kinds=("plain",))
    assert any("depends on the query" in fault for fault in check(pair).faults)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda mask, n: torch.arange(n) % 2 == 0, "sums over slots vary"),
        (lambda mask, n: torch.arange(n) < n * 0.9, "does not fit"),
        (lambda mask, n: torch.rand(n).argsort().argsort() < n // 2, "sums over steps vary"),
    ],
    ids=["the same every step", "too many", "a fixed batch size"],
)
def test_sampling_that_is_not_poisson_is_caught(monkeypatch, fault, expected):
    exact = mechanisms_module.poisson_mask
    monkeypatch.setattr(
        mechanisms_module, "poisson_mask", lambda key, n, probability: fault(exact(key, n, probability=probability), n)
    )
    torch.manual_seed(0)
    monkeypatch.setitem(globals(), "PLAN", PLAN.model_copy(update={"steps": 30}))
    (pair,) = pairs(kinds=("plain",))
    # Masks are judged in the first pass.
    report = replay_check(method, data=pair.data, neighbour=pair.neighbour)
    assert any(expected in found for found in report.faults)


def test_a_run_that_fails_on_the_neighbour_alone_is_a_finding():
    def run(data, make_mechanisms):
        if not bool(data["valid"].all()):
            raise ZeroDivisionError("row 4")
        return method(data, make_mechanisms)

    (pair,) = pairs(kinds=("plain",))
    report = replay_check(run, data=pair.data, neighbour=pair.neighbour, forced=(pair.slot,))
    assert any("ZeroDivisionError" in fault for fault in report.faults)


def test_other_mechanism_calls_are_a_finding():
    def run(data, make_mechanisms):
        mechanisms = make_mechanisms(material(histogram("extra", sigma=1.0), histogram("sizes", sigma=1.0)))
        if bool(data["valid"].all()):
            mechanisms.histogram(torch.tensor([1]), sigma=1.0, purpose="extra")
        mechanisms.histogram(torch.tensor([1, 2]), sigma=1.0, purpose="sizes")
        return Observation(visible={}, charges=("one",))

    (pair,) = pairs(kinds=("plain",))
    assert any("call 0" in fault for fault in replay_check(run, data=pair.data, neighbour=pair.neighbour).faults)
    back = replay_check(run, data=pair.neighbour, neighbour=pair.data)
    assert any("call 0" in fault for fault in back.faults)


def test_fewer_calls_and_two_charges_are_findings():
    def run(data, make_mechanisms):
        mechanisms = make_mechanisms(material(histogram("sizes", sigma=1.0), histogram("again", sigma=1.0)))
        mechanisms.histogram(torch.tensor([1, 2]), sigma=1.0, purpose="sizes")
        if bool(data["valid"].all()):
            mechanisms.histogram(torch.tensor([1, 2]), sigma=1.0, purpose="again")
        return Observation(visible={}, charges=("one", "two"))

    (pair,) = pairs(kinds=("plain",))
    faults = replay_check(run, data=pair.data, neighbour=pair.neighbour).faults
    assert "2 mechanism calls became 1" in faults
    assert "expected a single charge, found 2" in faults


def test_neighbours_differ_in_their_slot_alone():
    for pair in pairs((0, 7)):
        for name, values in pair.data.items():
            others = torch.arange(N) != pair.slot
            assert torch.equal(values[others], rows()[name][others])
            assert torch.equal(pair.neighbour[name][others], rows()[name][others])
            assert not bool(pair.neighbour[name][pair.slot].any())
        assert bool(pair.data["valid"][pair.slot])
    kinds = {pair.kind: pair for pair in pairs()}
    assert kinds["extreme"].data["input_ids"][4].tolist() == [RARE_TOKEN] * LENGTH
    assert kinds["extreme"].data["attention_mask"][4].sum() == LENGTH
    assert kinds["empty"].data["attention_mask"][4].sum() == 1
    assert kinds["rare_class"].data["label"][4] == RARE_LABEL


def test_an_update_divided_by_the_drawn_batch_is_caught(monkeypatch):
    """Only masks of the neighbour's own show it: with the recorded ones both runs divide by the same."""
    poisson, update, drawn = mechanisms_module.Mechanisms.poisson, training._State.update, []

    def noting(self, **options):
        drawn.append(poisson(self, **options))
        return drawn[-1]

    def divided(self, stream, gradient, *, learning_rate, divisor):
        update(self, stream, gradient, learning_rate=learning_rate, divisor=max(1, int(drawn[-1].sum())))

    monkeypatch.setattr(mechanisms_module.Mechanisms, "poisson", noting)
    monkeypatch.setattr(training._State, "update", divided)
    (pair,) = pairs(kinds=("plain",))
    assert any("'model' differs" in fault for fault in check(pair).faults)


def test_a_whole_flow_is_recorded_through_the_gateways_that_it_opens_and_only_meanwhile():
    recorder = Recording()
    paid = material(histogram("sizes"))
    with recording(lambda found: Mechanisms(found, recorder=recorder)):
        Mechanisms.live(paid).histogram(torch.tensor([1, 2]), sigma=2.0, purpose="sizes")
        with pytest.raises(RuntimeError, match="one recording at a time"), recording(Mechanisms):
            pass
    assert [call.mechanism.purpose for call in recorder.calls] == ["sizes"]
    with pytest.raises(ZeroDivisionError), recording(Mechanisms):
        raise ZeroDivisionError
    assert Mechanisms.live(paid).recorder is None


def test_a_recorded_flow_keeps_its_release_log(tmp_path):
    with recording(lambda found: Mechanisms(found, recorder=Recording())):
        Mechanisms.live(material(histogram("sizes")), tmp_path).histogram(torch.tensor([1]), sigma=2.0, purpose="sizes")
    assert [path.name for path in tmp_path.iterdir()] == ["histogram.0.sizes.safetensors"]


def test_everyone_nobody_and_the_neighbours_own_masks():
    """Forced, every slot takes part; one recorded step is empty; the neighbour's own odd masks are the contrary."""
    seen = []

    def run(data, make_mechanisms):
        mechanisms = make_mechanisms(material(*PLAN.queries))
        masks = [mechanisms.poisson(step=step, n=N, probability=0.5, purpose="train") for step in range(4)]
        seen.append([int(mask.sum()) for mask in masks])
        return Observation(visible={}, charges=("one",))

    replay_check(run, data=None, neighbour=None, forced="every")
    real, own, every, same = seen
    assert every == same == [N] * 4
    assert real[1] == 0 < own[1]
    assert (own[0], own[2]) == (real[0], real[2])
    assert own[3] == N - real[3]
