import math
from itertools import product

import pytest
import torch
from tests_support import VARIANTS

from understudy.data.private_rows import PrivateRows
from understudy.errors import InputError
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.losses import Reading, discriminator_loss, lm_loss
from understudy.methods.conditional_generation.model import build_model, merge_adapters
from understudy.methods.conditional_generation.queries import Asked, queries_of, schedule_of
from understudy.methods.conditional_generation.train import fit
from understudy.models.checkpoints import TrainingCheckpoint
from understudy.models.lora import trainable_parameters
from understudy.privacy.grid import charged_sensitivity
from understudy.privacy.mechanism_call import Mechanism

# Of each training, with a batch of 10 of 40 rows.
TWO_STEPS = {"epochs": 0.5}


@pytest.fixture
def run(make_base, make_mechanisms, label_names, encoded):
    """Fit a small model with a fixed noise multiplier (calibrating one takes seconds)."""

    def run(config, *, rows=encoded, base="llama", noise=0.0, charge="charge", recorder=None, **resumed):
        planned = with_noise(schedule_of(queries_of(config, n=len(rows.valid), epsilon=math.inf, delta=1e-3)), noise)
        asked = Asked(config, planned, make_mechanisms(planned, recorder, charge))
        return fit(make_base(base), rows, asked, **{"checkpoints": None, "progress": None, **resumed})

    return run


def with_noise(planned, noise: float):
    trainings = []
    for training in planned.trainings:
        streams = tuple(s.model_copy(update={"noise_multiplier": noise}) for s in training.streams)
        trainings.append(training.model_copy(update={"streams": streams}))
    return planned.model_copy(update={"trainings": tuple(trainings)})


def weights(trained) -> dict[str, torch.Tensor]:
    return trained.model.state_dict()


def moved(one, other) -> set[str]:
    assert set(one) == set(other)
    return {name for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.parametrize("name", VARIANTS)
def test_same_charge_same_bytes(run, make_config, name):
    config = make_config(**VARIANTS[name], train=TWO_STEPS)
    before = torch.get_rng_state()
    one, again = run(config, noise=1.0), run(config, noise=1.0)
    other = run(config, noise=1.0, charge="another")
    assert not moved(weights(one), weights(again))
    assert moved(weights(one), weights(other))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("name", "base"), [*product(VARIANTS, ["llama", "gpt2"]), ("joint", "opt"), ("naive_filter", "phi")]
)
def test_the_signal_alone_moves_every_trained_tensor(run, make_base, make_config, label_names, name, base):
    config = make_config(**VARIANTS[name], train=TWO_STEPS)
    start = build_model(make_base(base).model, label_names=label_names, config=config)
    trained = {
        parameter.replace(".base_model.model.", ".").split(".lora_")[0] + (".weight" if ".lora_" in parameter else "")
        for parameter in trainable_parameters(start)
    }
    end = run(config, base=base)
    assert moved(merge_adapters(start).state_dict(), weights(end)) == trained
    assert len(trained) >= 8


def test_how_many_rows_pass_at_a_time_hangs_on_slots_alone(
    make_base, make_mechanisms, make_config, make_rows, tokenizer, label_names
):
    """Of few rows among many null ones a pass would have fewer: how many there are is private."""
    config = make_config(variant="naive", train={"epochs": 1, "batch_size": 40, "micro_batch": "auto"})
    texts, labels = make_rows()
    found = []
    for kept in (len(texts), 9):
        some = [text if slot < kept else None for slot, text in enumerate(texts)]
        rows = encode(PrivateRows(some, labels, label_names), tokenizer=tokenizer, config=config)
        planned = schedule_of(queries_of(config, n=len(texts), epsilon=math.inf, delta=1e-3))
        base, passes = make_base("llama"), []
        embeddings = base.model.get_input_embeddings()
        embeddings.register_forward_pre_hook(lambda _, read, passes=passes: passes.append(len(read[0])))
        fit(base, rows, Asked(config, planned, make_mechanisms(planned)), checkpoints=None, progress=None)
        found.append(sorted(passes))
    assert found[0] == found[1]
    assert found[0][0] > 1


def test_full_fine_tuning_as_in_the_paper(run, make_base, make_config):
    config = make_config(lora={"rank": 0}, train={"frozen_layers": 2}, variant="naive")
    end = {name.removeprefix("lm."): value for name, value in weights(run(config, base="gpt2")).items()}
    embeddings = {"transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"}  # the head is tied
    assert moved(make_base("gpt2").model.state_dict(), end) == {
        *embeddings,
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
    }


@pytest.mark.parametrize("seed", range(2))
def test_learning_lowers_both_losses(run, make_base, make_config, make_rows, tokenizer, label_names, seed):
    """By far more than rounding, of other instructions or another order of sums, could move them."""
    texts, labels = make_rows()
    texts = [None if k is None else f"a {('bad', 'good', 'strange')[k]} film" for k in labels]
    rates = {"learning_rate": 1.4e-2, "discriminator_learning_rate": 1.4e-2, "learning_rate_decay": False}
    settings = {"epochs": 14, "batch_size": 30, "micro_batch": 40, "l2_clip_norm": 1.0, **rates}
    config = make_config(update="alternating", public_seed=seed, train=settings)
    rows = encode(PrivateRows(texts, labels, label_names), tokenizer=tokenizer, config=config)
    batch = {name: getattr(rows, name)[6:] for name in ("input_ids", "attention_mask", "loss_mask", "label")}
    batch |= {"slot": torch.arange(34), "step": torch.tensor(99)}
    read = Reading(rows.prompts, 2, "mean", seed=0)
    start = build_model(make_base().model, label_names=label_names, config=config)
    end = run(config, rows=rows, charge=f"charge-{seed}").model
    with torch.no_grad():
        lm = [float(lm_loss(model, batch, prompts=rows.prompts).mean()) for model in (start, end)]
        heads = [float(discriminator_loss(model, batch, reading=read).mean()) for model in (start, end)]
    # Found over five seeds: 7.1 -> 5.6 to 5.9 and, from a guess at log 3, 0.13 to 0.37.
    assert lm[1] < lm[0] - 0.7
    assert heads[1] < 0.7 < math.log(3) - 0.3 < heads[0]


class Recorder:
    """Keeps what every call of the mechanism interface was about."""

    def __init__(self) -> None:
        self.calls: list[tuple[Mechanism, set[str]]] = []

    def observe(self, mechanism, query, draw):
        self.calls.append((mechanism, set(query)))
        return draw()


@pytest.mark.parametrize("name", VARIANTS)
def test_each_stream_is_noised_where_its_loss_reaches_and_nowhere_else(run, make_config, encoded, name):
    config = make_config(**VARIANTS[name], train=TWO_STEPS)
    recorder = Recorder()
    run(config, recorder=recorder, noise=1.0)
    planned = schedule_of(queries_of(config, n=len(encoded.valid), epsilon=math.inf, delta=1e-3))
    queries = [(m, names) for m, names in recorder.calls if m.kind == "gaussian_sum"]
    expected = [f"{t.name}/{s.name}" for t in planned.trainings for _ in range(t.steps) for s in t.streams]
    assert [mechanism.purpose for mechanism, _ in queries] == expected
    reach = {"lm": {"lm"}, "joint": {"lm", "discriminator"}, "filter": {"filter"}}
    for mechanism, names in queries:
        training, stream = mechanism.purpose.split("/")
        both = {"lm", "discriminator"} if training == "fine-tuning" else {"discriminator"}
        assert {n.split(".")[0] for n in names} == reach.get(stream, both)
        assert mechanism.sensitivity == charged_sensitivity(config.train.clip)


@pytest.mark.parametrize(("base", "rank"), [("opt", 2), ("phi", 0), ("phi", 2)])
def test_a_model_of_another_family_gives_rows_the_gradients_that_each_has_by_itself(run, make_config, base, rank):
    found = []
    for rows in (1, 8):
        queries: list[dict[str, torch.Tensor]] = []

        class Keeper:
            def observe(self, mechanism, query, draw, queries=queries):
                if mechanism.kind == "gaussian_sum":
                    queries.append({name: steps.double() for name, steps in query.items()})
                return draw()

        small = {"epochs": 0.25, "micro_batch": rows, "frozen_layers": 1}
        run(make_config(lora={"rank": rank}, train=small, update="joint"), base=base, recorder=Keeper())
        found.append(torch.cat([steps.flatten() for steps in queries[0].values()]))
    alone, together = found
    assert alone.norm() > 0
    assert (alone - together).norm() < 1e-5 * alone.norm()


@pytest.mark.parametrize("averaging", [0.0, 0.9])
@pytest.mark.parametrize(("name", "stops"), [("alternating", (3, 5, 99)), ("naive_pplm", (3, 7, 9, 99))])
def test_a_resumed_run_ends_in_the_same_bytes(run, make_config, tmp_path, name, stops, averaging):
    """Six steps of each training, of which every second is kept."""
    config = make_config(**VARIANTS[name], train={"epochs": 1.5, "averaging": averaging})
    whole = run(config, noise=1.0)

    class Killed(Exception):
        pass

    for stop in stops:

        def progress(step, _total, stop=stop):
            if step == stop:
                raise Killed

        try:
            resumed = run(
                config,
                noise=1.0,
                checkpoints=lambda training: TrainingCheckpoint(tmp_path / training, every=2),
                progress=progress,
            )
        except Killed:
            continue
    assert not moved(weights(whole), weights(resumed))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_training_averages_all_that_it_trains(run, make_base, make_config, label_names, name):
    config = make_config(**VARIANTS[name], train=TWO_STEPS)
    averaged = make_config(**VARIANTS[name], train={**TWO_STEPS, "averaging": 0.9})
    start = build_model(make_base().model, label_names=label_names, config=config)
    begun = merge_adapters(start).state_dict()
    last, average = weights(run(config, noise=1.0)), weights(run(averaged, noise=1.0))
    assert moved(last, average) == moved(begun, last) == moved(begun, average)


def test_progress_counts_all_trainings(run, make_config):
    seen = []
    run(make_config(variant="naive_pplm"), progress=lambda step, total: seen.append((step, total)))
    assert seen == [(step, 8) for step in range(1, 9)]


def test_a_schedule_for_other_rows_is_refused(make_base, make_mechanisms, make_config, label_names, encoded):
    config = make_config()
    planned = schedule_of(queries_of(config, n=41, epsilon=math.inf, delta=1e-3))
    asked = Asked(config, planned, make_mechanisms(planned))
    with pytest.raises(InputError, match="n=41"):
        fit(make_base(), encoded, asked, checkpoints=None, progress=None)


def test_a_null_row_has_no_influence(run, make_config, make_rows, tokenizer, label_names):
    """Whatever stands in the slot of an invalid row, the model is the same."""
    config = make_config(train=TWO_STEPS)
    texts, labels = make_rows()
    rows = encode(PrivateRows(texts, labels, label_names), tokenizer=tokenizer, config=config)
    one = run(config, rows=rows)
    rows.input_ids[5] = rows.input_ids[6]
    rows.attention_mask[5] = rows.loss_mask[5] = 1
    rows.label[5] = 2
    assert not moved(weights(one), weights(run(config, rows=rows)))
