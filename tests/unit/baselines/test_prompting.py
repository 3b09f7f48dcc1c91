import re

import pytest
import torch

from understudy.baselines import prompting
from understudy.baselines.prompting import few_shot, zero_shot
from understudy.errors import InputError
from understudy.evaluation.rows import LabelledTexts
from understudy.generation.config import SamplingConfig
from understudy.generation.prompts import Instruction
from understudy.models.loading import load_model

NAMES = ("negative", "positive")
INSTRUCTION = "A {label} film review:"
ASKED = Instruction(INSTRUCTION)
SHORT = SamplingConfig(max_new_tokens=10)
GREEDY = SamplingConfig(max_new_tokens=10, top_p=1e-6)
EXAMPLES = LabelledTexts(
    ["a dull film", "what a lovely cast", "a mess from start to end", "great fun"], [0, 1, 0, 1], NAMES
)


@pytest.fixture(scope="module")
def loaded():
    return load_model("tiny-llama")


def zero(loaded, rows, **changes):
    options = {"instruction": ASKED, "sampling": SHORT, "public_seed": 0, **changes}
    return zero_shot(loaded, NAMES, rows, **options)


def few(loaded, rows, exemplars=EXAMPLES, **changes):
    options = {"instruction": ASKED, "sampling": SHORT, "public_seed": 0, "shots": 2, **changes}
    return few_shot(loaded, exemplars, rows, **options)


def greedy_line(loaded, prompt):
    """The likeliest continuation of a prompt, token by token, without cache or batch; up to its first line break."""
    ids = [loaded.tokenizer.bos_token_id, *prompt]
    special = torch.tensor([i for i in loaded.tokenizer.all_special_ids if i != loaded.tokenizer.eos_token_id])
    drawn = []
    for _ in range(10):
        with torch.no_grad():
            scores = loaded.model(input_ids=torch.tensor([ids + drawn])).logits[0, -1]
        scores[special] = -torch.inf
        drawn.append(int(scores.argmax()))
        if drawn[-1] == loaded.tokenizer.eos_token_id:
            drawn.pop()
            break
    return loaded.tokenizer.decode(drawn).strip().split("\n")[0].strip()


def test_rows_are_shared_out_and_ordered_by_label(loaded):
    table = zero(loaded, 5)
    assert table.schema.names == ["text", "label"]
    assert table["label"].to_pylist() == [0, 0, 0, 1, 1]
    assert all(text and text == text.strip() and "\n" not in text for text in table["text"].to_pylist())
    assert len(set(table["text"].to_pylist())) == 5
    assert zero(loaded, 0).num_rows == 0


def test_zero_shot_continues_the_instruction_of_its_label(loaded):
    table = zero(loaded, 2, sampling=GREEDY)
    wanted = [greedy_line(loaded, loaded.tokenizer.encode(INSTRUCTION.replace("{label}", name))) for name in NAMES]
    assert table["text"].to_pylist() == wanted
    assert wanted[0] != wanted[1]


def test_few_shot_continues_examples_of_its_label(loaded):
    """Both orders of a label's two examples are possible prompts; one example of the other label is not."""
    table = few(loaded, 2, sampling=GREEDY)
    encode = loaded.tokenizer.encode
    for label, text in enumerate(table["text"].to_pylist()):
        instruction = encode(INSTRUCTION.replace("{label}", NAMES[label]))
        own = [
            [*instruction, *encode(" " + example), *encode("\n\n")]
            for example, of in zip(EXAMPLES.texts, EXAMPLES.labels, strict=True)
            if of == label
        ]
        possible = {greedy_line(loaded, [*a, *b, *instruction]) for a, b in ((own[0], own[1]), (own[1], own[0]))}
        assert text in possible
    assert table["text"].to_pylist() != zero(loaded, 2, sampling=GREEDY)["text"].to_pylist()


def test_examples_are_drawn_anew_for_each_text_and_a_label_without_any_gets_the_instruction(loaded, monkeypatch):
    prompts = []

    def record(model, padded, *, seeds, **options):
        prompts.extend(loaded.tokenizer.decode(i[m.bool()][1:]) for i, m in zip(*padded, strict=True))
        return [[60]] * len(seeds)

    monkeypatch.setattr(prompting, "sample", record)
    things = ("war", "love", "cars", "home")
    one_sided = LabelledTexts([f"dull,\nabout {thing}" for thing in things], [0] * 4, NAMES)
    few(loaded, 40, one_sided, shots=1)
    possible = {f"A negative film review: dull, about {thing}\n\nA negative film review:" for thing in things}
    assert set(prompts[:20]) == possible
    assert set(prompts[20:]) == {"A positive film review:"}
    prompts.clear()
    few(loaded, 2, one_sided, shots=9, sampling=SamplingConfig(max_new_tokens=2))  # examples are cut like a text
    assert sorted(prompts[0].split("\n\n")) == ["A negative film review:"] + ["A negative film review: dull,"] * 4


@pytest.mark.parametrize("draw", [zero, few])
def test_a_text_depends_on_seed_label_and_number_alone(loaded, draw, monkeypatch):
    table = draw(loaded, 6)
    state = torch.get_rng_state()
    assert draw(loaded, 6).equals(table)
    assert torch.equal(torch.get_rng_state(), state)
    assert not draw(loaded, 6, public_seed=1).equals(table)
    fewer = draw(loaded, 4)["text"].to_pylist()
    texts = table["text"].to_pylist()
    assert fewer == [*texts[:2], *texts[3:5]]
    monkeypatch.setattr(prompting, "_BATCH", 1)
    assert draw(loaded, 6).equals(table)


def test_an_empty_line_is_drawn_again(loaded, monkeypatch):
    calls = []

    def blank_at_first(model, prompts, *, seeds, **options):
        calls.append(len(seeds))
        tokens = loaded.tokenizer.encode("\n" if len(calls) == 1 else " fine film")
        return [tokens] + [loaded.tokenizer.encode(" good\nbad")] * (len(seeds) - 1)

    monkeypatch.setattr(prompting, "sample", blank_at_first)
    assert zero(loaded, 3)["text"].to_pylist() == ["fine film", "good", "good"]
    assert calls == [3, 1]


def test_progress_counts_texts(loaded):
    seen = []
    zero(loaded, 3, progress=lambda *step: seen.append(step))
    assert seen == [(3, 3)]


def test_what_does_not_fit_is_refused_whatever_the_examples_say(loaded):
    messages = []
    for text in ("short", "word " * 400):
        with pytest.raises(InputError, match=r"shots=40, max_new_tokens=10: .* holds 512") as error:
            few(loaded, 2, LabelledTexts([text], [0], NAMES), shots=40)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert few(loaded, 2, LabelledTexts(["word " * 400], [0], NAMES)).num_rows == 2
    with pytest.raises(InputError, match="shots=0"):
        few(loaded, 2, shots=0)
    with pytest.raises(InputError, match="rows=-1"):
        zero(loaded, -1)
    with pytest.raises(InputError, match=re.escape("expected a label in 0..1")):
        few(loaded, 2, LabelledTexts(["a"], [2], NAMES))
