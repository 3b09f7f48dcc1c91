from dataclasses import replace

import numpy as np
import pytest
import torch

from understudy.errors import InputError
from understudy.evaluation.texts.encoder import Encoder
from understudy.generation.prompts import build_prompts
from understudy.generation.step import last_states, next_logits
from understudy.methods.conditional_generation import generate as module
from understudy.methods.conditional_generation.class_means import ClassMeans
from understudy.methods.conditional_generation.filter import keep_reasons
from understudy.methods.conditional_generation.generate import generate, synthesize
from understudy.methods.conditional_generation.states import label_log_probabilities

SIZES = {"negative": 4, "positive": 7, "rather undecided": 0}
STRONG = {"steer": "key_value", "steps": 2, "kl_budget": 1.0}


@pytest.mark.parametrize("steering", [{"steer": "none"}, STRONG], ids=["plain", "steered"])
def test_rows_do_not_depend_on_the_batch_size(untrained, make_config, steering):
    labels = [0, 1, 2, 1, 0, 2, 2, 1, 0]
    settings = {"steering": steering, "sampling": {"max_new_tokens": 5}}
    texts = {
        size: generate(untrained, labels, config=make_config(generate={"batch_size": size, **settings}))
        for size in (1, 4, 64)
    }
    assert texts[1] == texts[4] == texts[64]
    assert len(set(texts[1])) == 9


def test_row_numbers_name_the_draws(untrained, make_config):
    whole = generate(untrained, [1] * 6, config=make_config())
    assert generate(untrained, [1] * 2, config=make_config(), first_row=4) == whole[4:]
    assert generate(untrained, [1] * 6, config=make_config(public_seed=1)) != whole


def test_steering_depends_on_the_wanted_label(untrained, make_config):
    """With one prompt for all labels, only the discriminator can tell them apart."""
    prompts = untrained.prompts
    first = [0, 0, 0]
    same = replace(prompts, input_ids=prompts.input_ids[first], attention_mask=prompts.attention_mask[first])
    model = type(untrained)(untrained.model, untrained.tokenizer, untrained.label_names, same)
    plain = make_config(generate={"steering": {"steer": "none"}})
    steered = make_config(generate={"steering": STRONG})
    assert generate(model, [0] * 5, config=plain) == generate(model, [1] * 5, config=plain)
    assert generate(model, [0] * 5, config=steered) != generate(model, [1] * 5, config=steered)


def test_a_text_ends_at_the_token_that_ends_texts_of_its_prompts(untrained, make_config):
    """The likeliest token of all, whichever it is, ends every text at once where it is the end."""
    plain = make_config(generate={"redraws": 0, "steering": {"steer": "none"}, "sampling": {"top_p": 1e-6}})
    text = generate(untrained, [1], config=plain)[0]
    ids, mask = untrained.prompts.input_ids[1:2], untrained.prompts.attention_mask[1:2]
    with torch.no_grad():
        logits = next_logits(untrained.model.lm, last_states(untrained.model.lm, ids, mask)[:, -1])[0]
    first = int(logits[untrained.prompts.ordinary_ids].argmax() + untrained.prompts.ordinary_ids[0])
    ended = replace(untrained, prompts=replace(untrained.prompts, end=first))
    assert text
    assert generate(ended, [1], config=plain) == [""]


def test_synthesis_has_the_wanted_sizes_in_the_order_of_the_labels(untrained, make_config):
    synthesis = synthesize(untrained, SIZES, config=make_config())
    assert synthesis.table.column_names == ["text", "label"]
    assert synthesis.table["label"].to_pylist() == [0] * 4 + [1] * 7
    assert all(text == text.strip() != "" for text in synthesis.table["text"].to_pylist())
    assert synthesis.report() == {
        "drawn": {"negative": 4, "positive": 7, "rather undecided": 0},
        "dropped": {},
        "shortfall": {},
    }


def test_an_unknown_label_is_refused(untrained, make_config):
    with pytest.raises(InputError, match="neutral"):
        synthesize(untrained, {"neutral": 3}, config=make_config())


class Silent(torch.nn.Module):
    """A language-modelling head that ends a text at once, or only at its first try."""

    def __init__(self, head: torch.nn.Module, *, until: int) -> None:
        super().__init__()
        self.head, self.left = head, until

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden)
        if self.left > 0:
            self.left -= 1
            logits[:, 0] = 1e4
        return logits


def test_empty_texts_are_drawn_again(untrained, make_config):
    untrained.model.lm.lm_head = Silent(untrained.model.lm.lm_head, until=2)
    config = make_config(generate={"redraws": 2, "steering": {"steer": "none"}})
    assert all(generate(untrained, [0, 1, 2], config=config))


def test_texts_that_stay_empty_are_dropped_and_reported(untrained, make_config):
    untrained.model.lm.lm_head = Silent(untrained.model.lm.lm_head, until=10**6)
    config = make_config(generate={"redraws": 2, "steering": {"steer": "none"}})
    report = synthesize(untrained, {"negative": 3, "positive": 1}, config=config).report()
    assert report["dropped"] == {"negative": {"empty": 12}, "positive": {"empty": 4}}, "up to max_draws per row"
    assert report["shortfall"] == {"negative": 3, "positive": 1}


def test_the_filter_keeps_what_its_judge_believes(untrained, make_config):
    config = make_config(filter={"enabled": True, "threshold": 0.3})
    texts = generate(untrained, [0, 1, 2] * 8, config=config)
    labels = [0, 1, 2] * 8
    reasons = keep_reasons(untrained, [*texts, ""], [*labels, 1], config=config)
    believed = label_log_probabilities(untrained, texts, config=config).exp()
    kept = [bool(believed[row, label] > 0.3) for row, label in enumerate(labels)]
    assert [reason is None for reason in reasons[:-1]] == kept
    assert set(reasons[:-1]) == {None, "low_probability"}
    assert reasons[-1] == "empty"


def test_without_filter_only_empty_texts_are_dropped(untrained, make_config):
    assert keep_reasons(untrained, ["a", ""], [0, 1], config=make_config()) == [None, "empty"]


def test_filtered_synthesis_draws_more_until_it_has_enough(untrained, make_config):
    config = make_config(
        filter={"enabled": True, "threshold": 0.25, "max_draws": 40.0}, generate={"steering": {"steer": "none"}}
    )
    synthesis = synthesize(untrained, {"negative": 6, "positive": 6}, config=config)
    table = synthesis.table.to_pydict()
    assert table["label"] == [0] * 6 + [1] * 6
    believed = label_log_probabilities(untrained, table["text"], config=config).exp()
    assert all(believed[row, label] > 0.25 - 1e-6 for row, label in enumerate(table["label"]))
    drawn, dropped = synthesis.drawn, synthesis.dropped
    assert max(drawn.values()) > 6
    assert sum(sum(reasons.values()) for reasons in dropped.values()) <= sum(drawn.values()) - 12
    assert synthesis.shortfall == {}


def test_draws_are_bounded_and_what_is_missing_is_said(untrained, make_config):
    config = make_config(filter={"enabled": True, "threshold": 0.999, "max_draws": 2.5})
    report = synthesize(untrained, {"negative": 3, "positive": 2}, config=config).report()
    assert report["drawn"] == {"negative": 8, "positive": 5, "rather undecided": 0}
    assert report["dropped"] == {"negative": {"low_probability": 8}, "positive": {"low_probability": 5}}
    assert report["shortfall"] == {"negative": 3, "positive": 2}


def test_no_more_is_drawn_than_so_many_times_the_rows(untrained, make_config):
    """In floats 2.2 * 25 is above 55."""
    untrained.model.lm.lm_head = Silent(untrained.model.lm.lm_head, until=10**6)
    config = make_config(filter={"max_draws": 2.2}, generate={"redraws": 0, "steering": {"steer": "none"}})
    assert synthesize(untrained, {"negative": 25}, config=config).report()["drawn"]["negative"] == 55


def test_progress_reaches_the_end(untrained, make_config):
    seen = []
    generate(untrained, [0] * 9, config=make_config(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(7, 9), (9, 9)]


TOPICS = (("film", "plot"), ("slowly",), ("the",))


@pytest.fixture
def with_topics(untrained):
    prompts = build_prompts(untrained.tokenizer, untrained.label_names, topics=TOPICS)
    return replace(untrained, prompts=prompts)


def test_a_text_follows_its_topic(with_topics, make_config):
    config = make_config(generate={"steering": {"steer": "none"}})
    texts = [generate(with_topics, [1] * 3, config=config, topics=[topic] * 3) for topic in range(3)]
    assert texts[0] == generate(with_topics, [1] * 3, config=config)
    assert texts[0] != texts[1] != texts[2] != texts[0]
    mixed = generate(with_topics, [1, 1, 1], config=config, topics=[2, 0, 1])
    assert mixed == [texts[2][0], texts[0][1], texts[1][2]]


def test_a_labels_rows_are_drawn_of_its_topics_as_the_histogram_has_them(with_topics, make_config, monkeypatch):
    config, asked = make_config(generate={"steering": {"steer": "none"}}), []
    plain = module.generate

    def noting(trained, labels, *, topics, **options):
        asked.extend(zip(labels, topics, strict=True))
        return plain(trained, labels, topics=topics, **options)

    monkeypatch.setattr(module, "generate", noting)
    synthesis = synthesize(with_topics, SIZES, config=config, topic_counts=[30, -2, 10, 0, 0, -1, 5, 5, 5])
    assert asked == [(0, 0)] * 3 + [(0, 2)] + [(1, 0)] * 3 + [(1, 1)] * 2 + [(1, 2)] * 2
    assert synthesis.table["label"].to_pylist() == [0] * 4 + [1] * 7
    assert synthesis.report()["drawn"] == {"negative": 4, "positive": 7, "rather undecided": 0}


def test_texts_are_selected_within_their_topic(with_topics, make_config, monkeypatch):
    """Otherwise the topic whose texts lie nearest to a label's mean would have all of its rows."""
    texts = [f"{place}" for place in range(16)]
    monkeypatch.setattr(module, "generate", lambda _trained, labels, **_: texts[: len(labels)])
    dimensions = np.array([[float(text)] for text in texts], np.float32)
    stand_in = Encoder("numbers", "e" * 64, 1, lambda given: dimensions[[int(text) for text in given]])
    monkeypatch.setattr(module.encoder, "load_encoder", lambda **_: stand_in)
    means = ClassMeans(np.array([[1.0], [-1.0], [0.0]], np.float32), np.zeros(3, np.float32), "e" * 64)
    config = make_config(selection={"draws": 4})
    synthesis = synthesize(with_topics, {"negative": 4}, config=config, means=means, topic_counts=[1, 0, 3] + [0] * 6)
    assert synthesis.table["text"].to_pylist() == ["3", "13", "14", "15"]
    assert synthesis.report()["dropped"] == {"negative": {"outranked": 12}}
