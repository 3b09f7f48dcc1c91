"""Instructions, the charged settings, the shared seed set, tuning, and what crosses."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from random_models import random_model
from tests_support import write_random_model
from tokenizers import AddedToken

from understudy.artifacts.zone_keys import own_key
from understudy.errors import InputError, UnderstudyError, ZoneError
from understudy.generation import self_instruct
from understudy.generation.instructions import Pair
from understudy.methods.knowledge_distillation import crossing, distil, instructions, responses
from understudy.methods.knowledge_distillation.base import seed_digest, shared_base, targets_of
from understudy.methods.knowledge_distillation.config import KnowledgeDistillationConfig, LoraConfig
from understudy.methods.knowledge_distillation.instructions import (
    BUILTIN,
    Drawn,
    draw_instructions,
    few_shot_prompts,
    read_examples,
)
from understudy.methods.knowledge_distillation.method import charged_settings, resolve
from understudy.methods.knowledge_distillation.public_texts import compared_with
from understudy.methods.knowledge_distillation.queries import queries_of, schedule_of
from understudy.methods.knowledge_distillation.train import check_trainable
from understudy.models.checkpoints import TrainingCheckpoint, export_model
from understudy.models.loading import load_model
from understudy.privacy import labels
from understudy.privacy.dpsgd import tapping
from understudy.progress import Course
from understudy.runs.overrides import apply_overrides

PAIRS = [Pair("Name a colour.", "Red is one."), Pair("How do I water a fern?", "Little and often.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_random_model(tmp_path_factory.mktemp("model") / "random", positions=128)


@pytest.fixture
def config(folder):
    plain = KnowledgeDistillationConfig(model=str(folder), samples=4)
    small = ["tune.steps=4", "tune.batch_size=2", "tune.max_length=64", "instructions.sampling.max_new_tokens=8"]
    return apply_overrides(plain, [*small, f"professional.model={folder}"])


def test_prompts_show_as_many_public_examples_as_fit(folder, config):
    model = load_model(folder)
    prompts = few_shot_prompts(model, config, count=6)
    shown = [model.tokenizer.decode(prompt.ids) for prompt in prompts]
    assert all(any(example in text for example in BUILTIN) for text in shown)
    assert len(set(shown)) > 1, "each prompt chooses its own"
    assert max(len(prompt.ids) for prompt in prompts) + 8 <= 128
    for prompt, text in zip(prompts, shown, strict=True):
        assert text.endswith(f"\n{prompt.shown + 1}."), "behind the examples stands the number to be written"
    with pytest.raises(InputError, match="one example"):
        few_shot_prompts(model, apply_overrides(config, ["instructions.sampling.max_new_tokens=120"]), count=1)


def test_as_many_instructions_are_drawn_as_asked_and_short_ones_counted(folder, config):
    drawn = draw_instructions(load_model(folder), config, count=8)
    assert drawn.drawn == 8
    assert len(drawn.texts) + drawn.short == 8
    few = apply_overrides(config, ["instructions.batch_size=3"])
    again = draw_instructions(load_model(folder), few, count=8)
    assert again.texts == drawn.texts, "the batch is speed only"


def test_an_instruction_ends_at_the_next_number_of_its_own_list(folder, config, monkeypatch):
    model = load_model(folder)

    def numbered(model, prompts, **_):
        shown = [int(model.tokenizer.decode(ids).rpartition("\n")[2].rstrip(".")) - 1 for ids in prompts]
        return [f" The patient is 67. Is it so? 99) Or not? {number + 2}. Name a bird." for number in shown]

    monkeypatch.setattr(instructions.self_instruct, "continue_prompts", numbered)
    drawn = draw_instructions(model, config, count=8)
    assert set(drawn.texts) == {"The patient is 67. Is it so? 99) Or not?"}
    assert len(drawn.texts) == 8


def test_answers_end_with_the_turn_and_hold_no_other_special_token(folder, config, monkeypatch):
    """As in Phi-3: `<|end|>` is no `eos` and not among `all_special_ids`."""
    model = load_model(folder)
    tokenizer = model.tokenizer
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|end|>\n{% endfor %}<a>"
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<|end|>", "<|user|>")])
    turn, other = tokenizer.convert_tokens_to_ids(["<|end|>", "<|user|>"])
    drawn = tokenizer.encode("So.", add_special_tokens=False)

    def scripted(model, prompts, *, seeds, eos, forbidden, **_):
        assert eos == turn
        assert {*tokenizer.all_special_ids, other} <= set(forbidden)
        return [drawn for _ in seeds]

    monkeypatch.setattr(self_instruct, "sample", scripted)
    assert responses.write_responses(["Why?", "word " * 300], model, config) == ["So.", "So."]
    assert responses.count_cut_requests(["Why?", "word " * 300], model, config) == 1


def test_only_what_private_pairs_meet_is_charged(config):
    fixed = charged_settings(config)
    for change in (
        "samples=9",
        "about=plants",
        "filters.bleu=5",
        "tune.steps=7",
        "professional.model=other",
        "seed.epochs=3",
    ):
        assert charged_settings(apply_overrides(config, [change])) == fixed, change
    for change in ("train.epochs=9", "lora.rank=3", "template=plain", "public_seed=4", "train.max_length=60"):
        assert charged_settings(apply_overrides(config, [change])) != fixed, change
    seeded = apply_overrides(config, ["seed.pairs=seed.csv", "seed.digest=one"])
    assert charged_settings(seeded) != fixed
    for change in ("seed.digest=two", "seed.epochs=3", "tune.batch_size=3", "tune.max_length=70"):
        assert charged_settings(apply_overrides(seeded, [change])) != charged_settings(seeded), change


def test_the_schedule_is_that_of_the_queries_and_no_other(config):
    queries = queries_of(config, n=100, epsilon=4.0, delta=1e-3)
    plan = schedule_of(queries)
    assert plan.queries == queries
    assert (plan.n, plan.expected_batch) == (100, 64)
    others = [one.model_copy(update={"kind": "masked_sum"}) for one in queries]
    for wrong in ((*queries, *queries), others):
        with pytest.raises(UnderstudyError, match="one query"):
            schedule_of(tuple(wrong))


def test_the_attention_s_projections_are_found_or_named(folder):
    assert targets_of(load_model("tiny-llama").model, LoraConfig()) == ("q_proj", "k_proj", "v_proj", "o_proj")
    assert targets_of(load_model(folder).model, LoraConfig()) == ("c_attn",)
    assert targets_of(load_model(folder).model, LoraConfig(targets=("c_fc",))) == ("c_fc",)
    with pytest.raises(InputError, match="all-linear"):
        targets_of(torch.nn.Linear(2, 2), LoraConfig())


def test_a_model_that_gives_no_pair_a_gradient_of_its_own_is_refused_before_the_charge(config, tmp_path, monkeypatch):
    """As OPT's feed-forward layers, which take the tokens of all pairs as one text, if it were not known."""
    model = random_model("opt", vocabulary=4096, width=16, positions=128, layers=1)
    export_model(model, load_model("tiny-gpt2").tokenizer, tmp_path / "opt")
    wide = apply_overrides(config, ["lora.targets=all-linear"])
    check_trainable(load_model(tmp_path / "opt"), wide)
    monkeypatch.setattr(tapping, "_FLATTENING", {})
    check_trainable(load_model(tmp_path / "opt"), config)
    with pytest.raises(InputError, match=r"model=opt: layer .* leading dimension .* name other lora\.targets"):
        check_trainable(load_model(tmp_path / "opt"), wide)


def test_both_zones_make_the_same_base_from_the_shared_seed_set(config, tmp_path):
    path = tmp_path / "seed.parquet"
    pq.write_table(pa.table({"instruction": ["Name a colour."] * 4, "response": ["Red is one."] * 4}), path)
    seeded = apply_overrides(config, [f"seed.pairs={path}"])
    one, same, plain = shared_base(seeded), shared_base(seeded), shared_base(config)
    weights = [loaded.model.state_dict() for loaded in (one, same, plain)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert any(not torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    fixed = seeded.model_copy(update={"seed": seeded.seed.model_copy(update={"digest": seed_digest(seeded)})})
    shared_base(fixed)
    pq.write_table(pa.table({"instruction": ["Name a tree."], "response": ["An oak."]}), path)
    with pytest.raises(InputError, match="pairs that the run began with"):
        shared_base(fixed)


@pytest.mark.parametrize("setting", ["instructions.examples", "filters.against"])
def test_public_instructions_are_part_of_what_a_run_is(setting, config, tmp_path):
    """Their content is: a task that reads them by name would find its old result after an edit of the file."""
    path = tmp_path / "public.csv"
    path.write_text("instruction\nName a colour.\nName a bird.\n")
    asked = apply_overrides(config, [f"{setting}={path}"])
    first = resolve(asked, 100)
    read_examples(first.instructions)
    compared_with(first.filters)
    assert charged_settings(first) == charged_settings(asked), "they meet no private pair"
    path.write_text("instruction\nName a tree.\n")
    assert resolve(asked, 100) != first
    with pytest.raises(InputError, match=f"{setting}=.*texts that the run began with"):
        [read_examples(first.instructions), compared_with(first.filters)]


def test_tuning_goes_on_where_it_was_killed_and_ends_in_the_same_bytes(config, tmp_path):
    calm = distil.improve(shared_base(config), None, PAIRS, config)
    checkpoint = TrainingCheckpoint(tmp_path / "steps", every=1)

    def die(step, _steps):
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distil.improve(shared_base(config), None, PAIRS, config, course=Course(checkpoint, die))
    resumed = distil.improve(shared_base(config), None, PAIRS, config, course=Course(checkpoint))
    assert calm.keys() == resumed.keys()
    assert all(torch.equal(calm[name], resumed[name]) for name in calm)
    fresh = distil.improve(shared_base(config), None, [], config)
    assert any(not torch.equal(calm[name], fresh[name]) for name in calm), "without pairs the adapter stays"


def test_an_adapter_crosses_to_its_receiver_for_its_charge_only(home, tmp_path, config):
    adapter = distil.improve(shared_base(config), None, [], config)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    sent = {"label": labels.public(), "charge": "charge-1", "way": "to-server", "sender": "client", "facts": {}}
    crossing.send(adapter, tmp_path / "one", receiver=own_key("server").public, **sent)
    taken = {"label": labels.public(), "charge": "charge-1", "way": "to-server", "sender": "client"}
    back = crossing.receive(tmp_path / "one", receiver="server", **taken)
    assert all(torch.equal(adapter[name], back[name]) for name in adapter)
    with pytest.raises(ZoneError, match="for the key"):
        crossing.receive(tmp_path / "one", receiver="client", **taken)
    with pytest.raises(ZoneError, match="an old bundle"):
        crossing.receive(tmp_path / "one", receiver="server", **taken | {"charge": "charge-2"})
    with pytest.raises(ZoneError, match="an old bundle"):
        crossing.receive(tmp_path / "one", receiver="server", **taken | {"way": crossing.to_client("a" * 64, config)})


def test_pairs_are_ranked_as_the_settings_say(folder, config):
    model = load_model(folder)
    words = ("ferns", "banks", "tides", "rooms", "pears", "loans", "birds", "roads", "coats")
    pairs = [Pair(f"Tell me of {word}.", "no" if place < 3 else "yes") for place, word in enumerate(words)]
    wanted = {
        name: apply_overrides(config, ["samples=3", f"filters.{name}"]) for name in ("rank=none", "rank_within=all")
    }
    scores = distil.ranked(pairs, model, apply_overrides(config, ["samples=9", "filters.rank=none"]))["ifd"].to_pylist()
    drawn = distil.ranked(pairs, model, wanted["rank=none"])
    assert drawn["instruction"].to_pylist() == [pair.instruction for pair in pairs[:3]]
    together = distil.ranked(pairs, model, wanted["rank_within=all"])
    assert together["ifd"].to_pylist() == sorted(scores)[:3]
    within = distil.ranked(pairs, model, apply_overrides(config, ["samples=3"])).to_pylist()
    best = {
        response: min(score for pair, score in zip(pairs, scores, strict=True) if pair.response == response)
        for response in ("no", "yes")
    }
    assert sorted(row["response"] for row in within) == ["no", "yes", "yes"], "a third of the pairs says no"
    for response, score in best.items():
        assert min(row["ifd"] for row in within if row["response"] == response) == score


def test_what_leaves_no_pair_says_so_and_keeps_the_adapter(config, tmp_path):
    strict = apply_overrides(config, ["filters.threshold=1.0"])
    made = distil.synthesise(shared_base(strict), strict, answers=tmp_path)
    assert made.table.num_rows == 0
    dropped = made.facts["dropped"][""]
    assert sum(dropped.values()) == made.facts["drawn"][""] == 8 * 5, "as many as are drawn at most"
    assert made.facts["shortfall"][""] == 4


def test_what_filters_drop_is_made_up_by_further_waves_that_repeat_nothing(config, tmp_path, monkeypatch):
    """Of each wave the judge keeps a quarter, so the first eight instructions give two of the four pairs."""
    plain, waves, asked = apply_overrides(config, ["filters.share=0.25", "filters.rank=none"]), [], []
    words = ("ferns", "banks", "tides", "rooms", "pears", "loans", "birds", "roads")

    def drawn(_model, _config, *, count, first, progress):
        waves.append((first, count))
        again = first // 3 * 3  # the second wave begins with instructions of the first
        return Drawn(tuple(f"Name {words[row % 8]} {row // 8}" for row in range(again, again + count)), count, 0)

    def answered(texts, _model, _config, _progress, *, first):
        asked.append((first, len(texts)))
        return [f"answer {first + place}" for place in range(len(texts))]

    monkeypatch.setattr(distil, "draw_instructions", drawn)
    monkeypatch.setattr(distil, "write_responses", answered)
    made = distil.synthesise(shared_base(plain), plain, answers=tmp_path)
    assert waves[:2] == [(0, 8), (8, 8)], "two of eight are kept and two are missing"
    assert waves == [(sum(count for _, count in waves[:place]), count) for place, (_, count) in enumerate(waves)]
    assert asked[:2] == [(0, 2), (2, 2)]
    table = made.table.to_pylist()
    assert [row["response"] for row in table] == [f"answer {number}" for number in range(4)]
    assert len({row["instruction"] for row in table}) == 4
    assert made.facts["shortfall"][""] == 0
    assert made.facts["drawn"][""] == sum(count for _, count in waves)


def test_an_instruction_is_the_same_in_whichever_wave_it_is_drawn(folder, config):
    model, kept = load_model(folder), apply_overrides(config, ["instructions.least_words=1"])
    whole = draw_instructions(model, kept, count=8).texts
    parts = [draw_instructions(model, kept, count=count, first=first).texts for first, count in ((0, 5), (5, 3))]
    assert (*parts[0], *parts[1]) == whole


def test_drawing_and_answering_are_told_as_the_halves_of_one_work(config, tmp_path):
    plain, told = apply_overrides(config, ["filters.judge=none"]), []
    made = distil.synthesise(
        shared_base(plain), plain, answers=tmp_path, progress=lambda done, parts: told.append(done / parts)
    )
    assert told == sorted(told)
    assert 0.5 in told
    assert told[-1] == 1.0
    assert made.table.num_rows > 0


def test_what_was_cut_of_synthetic_texts_is_counted(config, tmp_path, monkeypatch):
    plain = apply_overrides(config, ["filters.share=1.0", "samples=3"])
    texts = ("Name a colour.", "How do I water a fern? " * 8, "Why " * 400)
    monkeypatch.setattr(distil, "draw_instructions", lambda *_, **__: Drawn(texts, 3, 0))
    monkeypatch.setattr(distil, "write_responses", lambda asked, *_, **__: ["Red is one.", "Often.", "So " * 200])
    made = distil.synthesise(shared_base(plain), plain, answers=tmp_path)
    assert made.facts["cut"][""] == {
        "requests judged": 1,
        "requests answered": 2,
        "instructions scored": 2,
        "responses scored": 1,
    }
