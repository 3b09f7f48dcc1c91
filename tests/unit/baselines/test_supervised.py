"""Fine-tuning on survivors: one step equals a naive one, prompts carry no loss, texts follow what was learnt."""

import pytest
import torch
from torch.nn import functional

from understudy.baselines.supervised import SupervisedConfig, draw_texts, fine_tune
from understudy.errors import InputError
from understudy.generation.config import SamplingConfig
from understudy.models.loading import load_model
from understudy.models.lora import trainable_parameters

EXAMPLES = [("Text:", " a heron by the river"), ("", " fog"), ("Text:", " rain in the morning and wind")]
GREEDY = SamplingConfig(max_new_tokens=8, temperature=0.01, top_p=1.0)


def adapter_tensors(tuned):
    """The adapter's weights by name, detached, on the CPU."""
    return {name: parameter.detach().cpu().clone() for name, parameter in trainable_parameters(tuned.model).items()}


def make_config(**changes):
    return SupervisedConfig(**{"lora_rank": 2, "lora_alpha": 4, "learning_rate": 0.01, "epochs": 1, **changes})


def mean_loss(loaded, examples, longest=64):
    """Of the texts and their end tokens, one example at a time and unpadded."""
    losses = []
    for prompt, text in examples:
        before = [0, *loaded.tokenizer.encode(prompt, add_special_tokens=False)]
        after = loaded.tokenizer.encode(text, add_special_tokens=False)
        after = after[:longest] if len(after) > longest else [*after, 0]
        logits = loaded.model(torch.tensor([[*before, *after]])).logits[0]
        for i, token in enumerate(after):
            losses.append(functional.cross_entropy(logits[len(before) + i - 1], torch.tensor(token)))
    return torch.stack(losses).mean()


def test_one_step_is_adamw_on_the_texts_alone(base):
    # From a learning rate too small to move anything: the adapter's start. One step of AdamW ends near it.
    start = fine_tune(load_model(base), EXAMPLES, config=make_config(learning_rate=1e-30), public_seed=5)
    tuned = fine_tune(load_model(base), EXAMPLES, config=make_config(max_text_tokens=4), public_seed=5)
    parameters = list(trainable_parameters(start.model).values())
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    mean_loss(start, EXAMPLES, longest=4).backward()
    optimizer.step()
    expected, found = (
        torch.cat([value.flatten() for value in adapter_tensors(model).values()]) for model in (start, tuned)
    )
    # Adam's first step is the sign of the gradient: where that is rounding, so is the step.
    clear = torch.cat([p.grad.flatten().abs() > 1e-6 for p in parameters])
    assert float(clear.double().mean()) > 0.2
    torch.testing.assert_close(found[clear], expected[clear], rtol=0, atol=1e-4)


def test_training_learns_repeats_and_leaves_the_base_alone(base):
    config = make_config(epochs=60, learning_rate=0.1)
    seen = []
    first = fine_tune(
        load_model(base), EXAMPLES, config=config, public_seed=1, progress=lambda *step: seen.append(step)
    )
    second = fine_tune(load_model(base), EXAMPLES, config=config, public_seed=1)
    other = fine_tune(load_model(base), EXAMPLES, config=config, public_seed=2)
    assert seen[-1] == (60, 60)
    one, two, three = (adapter_tensors(tuned) for tuned in (first, second, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], three[name]) for name in one)
    with torch.no_grad():
        before, *after = (float(mean_loss(tuned, EXAMPLES)) for tuned in (load_model(base), first, other))
    assert max(after) < before - 0.02
    plain = dict(load_model(base).model.named_parameters())
    for name, parameter in first.model.named_parameters():
        if "lora_" not in name:
            key = name.removeprefix("base_model.model.").replace(".base_layer", "")
            assert torch.equal(parameter, plain[key]), name


def test_texts_follow_what_was_learnt():
    examples = [("Text:", " zebra zebra zebra zebra")] * 4
    config = SupervisedConfig(epochs=12, learning_rate=5e-3, batch_size=4)
    tuned = fine_tune(load_model("tiny-gpt2"), examples, config=config, public_seed=0)
    assert draw_texts(tuned, ["Text:"], per_prompt=2, sampling=GREEDY, public_seed=0)[0].startswith("zebra zebra")
    untuned = draw_texts(load_model("tiny-gpt2"), ["Text:"], per_prompt=2, sampling=GREEDY, public_seed=0)
    assert "zebra" not in untuned[0]


def test_texts_come_prompt_by_prompt_and_do_not_depend_on_their_batch(base, monkeypatch):
    loaded, sampling = load_model("tiny-gpt2"), SamplingConfig(max_new_tokens=6, top_p=1.0)
    prompts = ["The film was", "", "Text: a heron"]
    seen = []
    together = draw_texts(
        loaded, prompts, per_prompt=3, sampling=sampling, public_seed=4, progress=lambda *n: seen.append(n)
    )
    assert len(together) == 9
    assert seen == [(9, 9)]
    assert len(set(together)) > 6
    monkeypatch.setattr("understudy.baselines.supervised._BATCH", 1)
    assert draw_texts(loaded, prompts, per_prompt=3, sampling=sampling, public_seed=4) == together
    assert draw_texts(loaded, prompts[:1], per_prompt=3, sampling=sampling, public_seed=4) == together[:3]
    assert draw_texts(loaded, [], per_prompt=3, sampling=sampling, public_seed=4) == []


def test_a_text_ends_before_the_stop(monkeypatch):
    loaded, sampling = load_model("tiny-gpt2"), SamplingConfig(max_new_tokens=12, top_p=1.0)
    whole = draw_texts(loaded, ["The film"], per_prompt=4, sampling=sampling, public_seed=0)
    cut = draw_texts(loaded, ["The film"], per_prompt=4, sampling=sampling, public_seed=0, stop=" ")
    assert cut != whole
    assert all(" " not in text for text in cut)


def test_what_does_not_fit_is_refused(base):
    with pytest.raises(InputError, match="examples to fine-tune on, found none"):
        fine_tune(load_model(base), [], config=make_config(), public_seed=0)
    with pytest.raises(InputError, match=r"145 tokens.*'random-gpt2' holds 64"):
        fine_tune(load_model(base), [("rain " * 70, "fog")], config=make_config(), public_seed=0)
    with pytest.raises(InputError, match=r"130 tokens.*'random-gpt2' holds 64"):
        draw_texts(load_model(base), ["rain " * 60], per_prompt=1, sampling=GREEDY, public_seed=0)
