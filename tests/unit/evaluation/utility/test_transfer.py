"""Label models and their fine-tuning (label_model.py, transfer.py)."""

from functools import partial

import numpy as np
import pytest
import torch
from tests_support import SENTIMENT_WORDS, SENTIMENTS
from torch.nn import functional

from understudy.errors import InputError
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.statistics.intervals import paired_bootstrap
from understudy.evaluation.utility import transfer
from understudy.evaluation.utility.accuracy import score
from understudy.evaluation.utility.label_model import LabelModel, encode_rows, label_losses, predict
from understudy.evaluation.utility.transfer import TransferConfig, fine_tune, load_label_model
from understudy.methods.gradient_matching.config import VerbalizerConfig
from understudy.methods.gradient_matching.verbalizer import build_verbalizer

SHORT = TransferConfig(profile="tiny", base="tiny-gpt2", steps=6, batch_size=4, max_length=20, frozen_lower_layers=2)
TEXTS = ["the film was good", "bad", "", "a long and rather tedious story about nothing at all that never ends"]


def flat(target: LabelModel) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in target.model.parameters()])


@pytest.fixture(scope="module")
def base():
    return load_label_model(label_words=SENTIMENT_WORDS, config=SHORT)


def test_the_profiles_are_those_of_the_paper_and_of_two_cores():
    paper, tiny = TransferConfig(), TransferConfig(profile="tiny")
    assert (paper.base, paper.steps, paper.batch_size, paper.learning_rate) == ("microsoft/phi-1_5", 200, 16, 7e-6)
    assert (paper.loss, paper.frozen_lower_layers, paper.measure_every) == ("vocabulary", 0, 50)
    assert (tiny.base, tiny.steps, tiny.batch_size, tiny.loss) == ("tiny-llama", 200, 16, "vocabulary")
    assert TransferConfig(profile="tiny", learning_rate=1e-5).learning_rate == 1e-5


def test_rows_are_cut_before_the_template(base):
    tokenizer = base.tokenizer
    rows = encode_rows(base, TEXTS)
    template = tokenizer.encode(" It was")
    assert all(row[0] == tokenizer.bos_token_id and row[-len(template) :] == template for row in rows)
    assert [len(row) - 1 - len(template) for row in rows[2:]] == [1, len(tokenizer.encode(" " + TEXTS[3]))]
    shorter = LabelModel(base.model, tokenizer, base.words, max_length=3)
    assert len(encode_rows(shorter, TEXTS[3:])[0]) == 1 + 3 + len(template)


@pytest.mark.parametrize("loss", ["vocabulary", "verbalizer"])
def test_losses_and_verdicts_row_by_row(base, loss):
    """By hand: each row alone, unpadded, the log-probability of its word."""
    target = LabelModel(base.model, base.tokenizer, base.words, 20, loss)
    labels = [1, 0, 1, 0]
    by_hand, verdicts = [], []
    for text, label in zip(TEXTS, labels, strict=True):
        ids = torch.tensor([[0, *base.tokenizer.encode(" " + text.strip())[:20], *base.tokenizer.encode(" It was")]])
        with torch.no_grad():
            scores = base.model(input_ids=ids).logits[0, -1]
        words = scores[[base.tokenizer.encode(" bad")[0], base.tokenizer.encode(" great")[0]]]
        normaliser = (words if loss == "verbalizer" else scores).logsumexp(-1)
        by_hand.append(float(normaliser - words[label]))
        verdicts.append(int(words.argmax()))
    assert label_losses(target, TEXTS, labels) == pytest.approx(by_hand, rel=1e-5)
    assert predict(target, TEXTS).tolist() == verdicts
    assert predict(target, []).tolist() == []


@pytest.mark.parametrize("kept", [1024, 0])
def test_it_is_adam_on_a_model_whose_lower_layers_are_frozen(make_reviews, monkeypatch, kept):
    """An independent loop: whole forward passes, torch's Adam on the upper layers, the same order of rows."""
    monkeypatch.setattr(transfer, "_STATES_KEPT", kept)
    train = make_reviews(10, seed=1)
    found = fine_tune(train, label_words=SENTIMENT_WORDS, config=SHORT, seed=3)
    slow = load_label_model(label_words=SENTIMENT_WORDS, config=SHORT)
    upper = [p for layer in slow.model.transformer.h[2:] for p in layer.parameters()]
    upper += list(slow.model.transformer.ln_f.parameters())
    for parameter in upper:
        parameter.requires_grad_(True)
    generator = torch.Generator().manual_seed(3)
    order = [row for _ in range(3) for row in torch.randperm(10, generator=generator).tolist()]
    optimizer = torch.optim.Adam(upper, lr=SHORT.learning_rate)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = SHORT.learning_rate * (6 - step) / 6
        losses = []
        for row in order[4 * step : 4 * step + 4]:
            ids = torch.tensor(encode_rows(slow, [train.texts[row]]))
            answer = slow.words.token_ids[int(train.labels[row])]
            losses.append(functional.cross_entropy(slow.model(input_ids=ids).logits[0, -1], answer))
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(losses).mean())
        optimizer.step()
    before = load_label_model(label_words=SENTIMENT_WORDS, config=SHORT)
    moved = (flat(slow) - flat(before)).norm()
    assert moved > 0.01
    assert (flat(found) - flat(slow)).norm() < 1e-2 * moved


def test_frozen_layers_do_not_move_and_without_them_everything_does(make_reviews):
    train = make_reviews(8, seed=1)
    base = load_label_model(label_words=SENTIMENT_WORDS, config=SHORT)
    for frozen in (0, 3):
        config = SHORT.model_copy(update={"frozen_lower_layers": frozen, "steps": 2})
        tuned = fine_tune(train, label_words=SENTIMENT_WORDS, config=config, seed=0)
        moved = [
            any(not torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
            for a, b in zip(tuned.model.transformer.h, base.model.transformer.h, strict=True)
        ]
        assert moved == [layer >= frozen for layer in range(4)]
        assert torch.equal(tuned.model.transformer.wte.weight, base.model.transformer.wte.weight) == (frozen > 0)
        assert not any(p.requires_grad for p in tuned.model.parameters())


@pytest.mark.parametrize("seed", range(2))
def test_it_learns_and_gives_verdicts_that_pair_up(make_reviews, seed):
    train, test = make_reviews(40, seed=1), make_reviews(60, seed=2)
    config = SHORT.model_copy(
        update={"steps": 40, "batch_size": 8, "max_length": 32, "learning_rate": 2e-3, "frozen_lower_layers": 3}
    )
    flipped = LabelledTexts(train.texts, 1 - np.asarray(train.labels), SENTIMENTS)
    right, wrong = (
        score(predict(fine_tune(rows, label_words=SENTIMENT_WORDS, config=config, seed=seed), test.texts), test.labels)
        for rows in (train, flipped)
    )
    assert right.accuracy > 0.8
    assert wrong.accuracy < 0.2
    assert right.correct.shape == (60,)
    assert paired_bootstrap(right.correct, wrong.correct, seed=0, replicates=200).low > 0.5


def test_its_seed_fixes_every_byte_and_no_global_generator_is_used(make_reviews):
    train = make_reviews(12, seed=1)
    state = torch.get_rng_state()
    one = fine_tune(train, label_words=SENTIMENT_WORDS, config=SHORT, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    two = fine_tune(train, label_words=SENTIMENT_WORDS, config=SHORT, seed=5)
    other = fine_tune(train, label_words=SENTIMENT_WORDS, config=SHORT, seed=6)
    assert torch.equal(flat(one), flat(two))
    assert not torch.equal(flat(one), flat(other))


def test_the_callback_sees_the_model_on_its_way(make_reviews):
    seen = []
    config = SHORT.model_copy(update={"steps": 5, "measure_every": 2})
    tuned = fine_tune(
        make_reviews(3, seed=1),  # fewer rows than a batch holds
        label_words=SENTIMENT_WORDS,
        config=config,
        seed=0,
        callback=lambda step, target: seen.append((step, flat(target))),
    )
    assert [step for step, _ in seen] == [0, 2, 4, 5]
    assert torch.equal(seen[0][1], flat(load_label_model(label_words=SENTIMENT_WORDS, config=config)))
    assert torch.equal(seen[-1][1], flat(tuned))
    assert not torch.equal(seen[1][1], seen[2][1])


def test_no_gradient_stays_with_the_model_on_its_way_or_in_the_end(make_reviews):
    """They are as large as what is trained, and several tuned models are held at a time."""
    held = []

    def look(_: int, target: LabelModel) -> None:
        held.append([name for name, parameter in target.model.named_parameters() if parameter.grad is not None])

    config = SHORT.model_copy(update={"measure_every": 2})
    tuned = fine_tune(make_reviews(8, seed=1), label_words=SENTIMENT_WORDS, config=config, seed=0, callback=look)
    look(config.steps, tuned)
    assert held == [[]] * 5


def test_another_family_and_several_labels():
    names = ("anger", "joy", "sadness")
    words = partial(build_verbalizer, label_names=names, config=VerbalizerConfig(template=" I feel"))
    rows = LabelledTexts(["so angry now", "what a happy day", "i cried"] * 2, [0, 1, 2] * 2, names)
    config = TransferConfig(profile="tiny", steps=30, max_length=12)
    tuned = fine_tune(rows, label_words=words, config=config, seed=0)
    assert predict(tuned, rows.texts).tolist() == [0, 1, 2] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": "no-such-model"}, "no-such-model"),
        ({"max_length": 600}, r"max_length=600: .* holds 512; expected at most 509"),
        ({"frozen_lower_layers": 4}, "expected 0 to 3"),
    ],
)
def test_what_does_not_fit_is_refused(make_reviews, changes, message):
    with pytest.raises(InputError, match=message):
        fine_tune(make_reviews(4, seed=1), label_words=SENTIMENT_WORDS, config=SHORT.model_copy(update=changes), seed=0)


def test_labels_are_checked():
    with pytest.raises(InputError, match=r"row 1: expected a label in 0\.\.1"):
        fine_tune(LabelledTexts(["a", "b"], [0, 2], SENTIMENTS), label_words=SENTIMENT_WORDS, config=SHORT, seed=0)
    with pytest.raises(InputError, match="0 texts, 0 labels"):
        fine_tune(LabelledTexts([], [], SENTIMENTS), label_words=SENTIMENT_WORDS, config=SHORT, seed=0)
