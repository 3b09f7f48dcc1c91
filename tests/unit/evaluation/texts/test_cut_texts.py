"""What is counted as cut is what the methods cut."""

import copy

import pytest

from understudy.data.private_rows import PrivateRows
from understudy.evaluation.metrics import Metrics
from understudy.evaluation.texts import cut_texts
from understudy.evaluation.utility.label_model import LabelModel, encode_rows
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.gradient_matching.config import GradientMatchingConfig, VerbalizerConfig
from understudy.methods.gradient_matching.verbalizer import build_verbalizer
from understudy.models.loading import load_model, load_tokenizer

NAMES = ("negative", "positive")


@pytest.fixture(scope="module")
def tokenizer():
    return load_model("tiny-llama").tokenizer


@pytest.fixture(scope="module")
def texts(samples):
    return [row["text"] for row in samples[:200]]


@pytest.fixture
def in_chats(tokenizer, monkeypatch):
    """The same tokenizer, of a model that was taught by conversations."""
    chat = copy.deepcopy(tokenizer)
    chat.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    monkeypatch.setattr(cut_texts, "load_tokenizer", lambda _: chat)
    return chat


def cut(texts, config):
    return cut_texts.measure_cut(texts, config.reading).values["cut.train.texts"]


def conditional(tokens):
    return ConditionalGenerationConfig.model_validate({"train": {"max_length": tokens}})


def encoded(texts, tokenizer, config):
    return encode(PrivateRows(texts, [0] * len(texts), NAMES), tokenizer=tokenizer, config=config).truncated


@pytest.mark.parametrize("tokens", [8, 20, 33, 400])
def test_it_is_what_conditional_generation_cuts(texts, tokenizer, tokens):
    config = conditional(tokens)
    assert cut(texts, config) == encoded(texts, tokenizer, config)
    assert (cut(texts, config) > 0) == (tokens < 400)


@pytest.mark.parametrize("tokens", [8, 20, 33])
def test_in_a_chat_as_well(texts, in_chats, tokens):
    assert cut(texts, conditional(tokens)) == encoded(texts, in_chats, conditional(tokens))


def test_a_text_that_fits_to_the_token_is_not_cut(tokenizer):
    one_token = [word for word in ("the", "film", "was", "good") if len(tokenizer.tokenize(" " + word)) == 1]
    assert one_token
    texts = [" ".join(one_token[:1] * count) for count in (18, 19, 20)]
    assert cut(texts, conditional(20)) == 1


@pytest.mark.parametrize("tokens", [5, 20, 33])
def test_it_is_what_gradient_matching_cuts(texts, tokenizer, tokens):
    config = GradientMatchingConfig(max_length=tokens, length=5)
    words = build_verbalizer(tokenizer, NAMES, VerbalizerConfig(template=" It was", words="names"))
    read, whole = (
        encode_rows(LabelModel(None, tokenizer, words, longest, "vocabulary"), texts) for longest in (tokens, 9999)
    )
    shorter = sum(len(one) < len(other) for one, other in zip(read, whole, strict=True))
    assert cut(texts, config) == shorter > 0


def test_without_training_nothing_is_read_by_the_base_model():
    assert ConditionalGenerationConfig(variant="untrained").reading is None


def test_the_count_is_a_known_figure():
    assert Metrics(values={"cut.train.texts": 3.0}).values
    assert load_tokenizer(conditional(20)).is_fast
