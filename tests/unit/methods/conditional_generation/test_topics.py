"""Topics found in public texts: their words by hand, what they depend on, and what is refused."""

import functools

import numpy as np
import pytest

from understudy.errors import InputError, UnderstudyError
from understudy.evaluation.texts import encoder
from understudy.evaluation.texts.encoder import Encoder
from understudy.methods.conditional_generation import topics as own
from understudy.methods.conditional_generation.encode import encode, prompts_of
from understudy.methods.conditional_generation.method import METHOD, charged_settings, describe
from understudy.methods.conditional_generation.queries import queries_of
from understudy.methods.conditional_generation.topics import find_topics, keywords, resolve_topics
from understudy.methods.conditional_generation.topics_config import TopicsConfig
from understudy.methods.method import Promise
from understudy.models import choices

FERRY = ["The ferry was late", "a ferry, late again in the harbour", "harbour and ferry", "ferry crew"]
SOUP = ["the soup was cold", "cold soup", "soup with 12 potatoes", "potatoes and soup"]
GIVEN = {"keywords": [["ferry", "harbour"], ["soup", "cold"]]}


def vectors(texts):
    """Ferries one way, soups the other, everything else a third."""
    return np.array([[("ferry" in text) + 0.01, ("soup" in text) + 0.01, 0.02] for text in texts], np.float32)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """In the place of the sentence encoder."""
    plain = Encoder(name="by two words", digest="e" * 64, dimension=3, encode=vectors)
    monkeypatch.setattr(encoder, "load_encoder", lambda **_: plain)
    monkeypatch.setattr(encoder, "encoder_digest", lambda: plain.digest)


@pytest.mark.filterwarnings("error")
def test_words_are_those_of_one_cluster_and_not_of_the_others():
    """Frequency in the cluster times log(1 + words of a cluster / frequency in all); 'late' and 'harbour' tie."""
    found = keywords([*FERRY, *SOUP], [0] * 4 + [1] * 4, words=3, without="")
    assert found == (("ferry", "harbour", "late"), ("soup", "cold", "potatoes"))


def test_words_of_a_label_of_one_text_and_with_digits_name_no_topic():
    found = keywords([*FERRY, *SOUP], [0] * 4 + [1] * 4, words=2, without="Late complaint, Cold")
    assert found == (("ferry", "harbour"), ("soup", "potatoes"))
    assert keywords(["abc12 x1", "12 34"], [0, 0], words=1, without="") == ()
    once = ["tea kettle", "tea", "soup", "soup bowl"]
    assert keywords(once, [0, 0, 1, 1], words=1, without="") == (("tea",), ("soup",))
    assert keywords(once, [0, 0, 1, 1], words=2, without="") == ()


def test_no_two_topics_have_the_same_words():
    """Of a second cluster the last word is a later one, and a cluster without another word is no topic."""
    texts, clusters = ["tea milk sugar"] * 5, [0, 0, 0, 1, 1]
    assert keywords(texts, clusters, words=2, without="") == (("milk", "sugar"), ("milk", "tea"))
    assert keywords(texts, clusters, words=3, without="") == (("milk", "sugar", "tea"),)


def test_clusters_follow_the_embeddings_and_the_largest_comes_first(make_config):
    config = make_config(topics={"number": 2, "words": 1})
    assert find_topics([*FERRY, *SOUP[:3]], ["good", "bad"], config) == (("ferry",), ("soup",))
    assert find_topics([*FERRY[:3], *SOUP], ["good", "bad"], config) == (("soup",), ("ferry",))


@pytest.mark.parametrize(("texts", "said"), [(["ferry"], "found 1 "), (["12", "13", "ab"], "topics.keywords")])
def test_too_few_texts_or_words_are_refused(make_config, texts, said):
    with pytest.raises(InputError, match=said):
        find_topics(texts, ["good", "bad"], make_config(topics={"number": 2}))


@pytest.fixture
def resolved(make_base, make_config, label_names, tmp_path, monkeypatch):
    """Settings with topics found in eight texts, and how often texts were written for it."""
    written = []

    def write(_base, names, **options):
        written.append((tuple(names), options["per_label"]))
        return [*FERRY, *SOUP], [0] * 8

    monkeypatch.setattr(own, "check_model", lambda *_: None)
    monkeypatch.setattr(own, "write_own_texts", write)
    monkeypatch.setattr(choices, "folder_digest", lambda _: "digest")
    monkeypatch.setattr(choices, "model_folder", lambda _: tmp_path)
    return written, lambda **changes: resolve_topics(
        make_config(**changes), label_names, base=make_base, kept_in=tmp_path
    )


def test_topics_are_found_once_for_a_model_its_labels_and_words(resolved, label_names):
    written, resolve = resolved
    first = resolve(topics={"number": 2, "words": 2, "texts": 5})
    assert set(first.topics.keywords) == {("ferry", "harbour"), ("soup", "cold")}
    assert resolve(topics={"number": 2, "words": 2, "texts": 5}) == first
    assert written == [(label_names, 5)]
    for change in ({"about": "notes"}, {"public_seed": 3}):
        resolve(topics={"number": 2, "words": 2, "texts": 5}, **change)
    assert len(written) == 3


@pytest.mark.parametrize("topics", [{}, GIVEN, {"number": 7, **GIVEN}], ids=["none", "given", "given and counted"])
def test_nothing_is_written_where_no_topic_is_to_be_found(resolved, make_config, topics):
    written, resolve = resolved
    assert resolve(topics=topics) == make_config(topics=topics)
    assert not written


@pytest.mark.parametrize("keywords", [[], [[]], [["a"], []], [["a", "b"], ["b", "a"]], [["a", ""]], [["a\nb"]]])
def test_words_that_tell_no_topics_apart_are_refused(keywords):
    with pytest.raises(ValueError, match="keywords"):
        TopicsConfig(keywords=keywords)


def test_topics_that_are_still_to_be_found_are_no_topics_yet(make_config, tokenizer, label_names):
    with pytest.raises(UnderstudyError, match="resolve"):
        prompts_of(tokenizer, label_names, make_config(topics={"number": 2}))


def test_how_topics_were_found_is_not_charged_and_their_words_are(make_config):
    """Once the words are known, their number, and of how many texts they are, say nothing more."""
    asked = make_config(topics={"number": 9, "words": 2, "texts": 7, "share": 0.3, **GIVEN})
    charged = charged_settings(asked).topics
    assert charged == charged_settings(make_config(topics={"share": 0.3, **GIVEN})).topics
    assert (charged.found, charged.share) == ((("ferry", "harbour"), ("soup", "cold")), 0.3)
    other = make_config(topics={"share": 0.3, "keywords": [["ferry", "late"], ["soup", "cold"]]})
    assert charged_settings(other).topics != charged


def test_without_topics_nothing_is_said_asked_or_charged_of_them(make_config, tokenizer, label_names):
    plain, idle = make_config(), make_config(topics={"number": 0, "words": 7, "texts": 9, "share": 0.5})
    assert charged_settings(idle) == charged_settings(plain)
    asked = [queries_of(config, n=50, epsilon=float("inf"), delta=1e-3) for config in (plain, idle)]
    assert asked[0] == asked[1]
    assert not [query for query in asked[1] if "topic" in query.name]
    assert prompts_of(tokenizer, label_names, idle).topics == 1
    promise = Promise(asked[1], 50, float("inf"), 1e-3, label_names)
    assert "topic" not in describe(idle, promise).model_dump_json()
    assert "topics" not in METHOD.report.facts(idle)


def test_the_plan_names_every_topic_in_words(make_config, label_names):
    config = make_config(topics=GIVEN)
    queries = queries_of(config, n=50, epsilon=float("inf"), delta=1e-3)
    said = describe(config, Promise(queries, 50, float("inf"), 1e-3, label_names))
    words = "1 ferry, harbour; 2 soup, cold"
    assert said.dry_run["topics"] == said.declared_public["topics"] == words
    assert words in METHOD.report.facts(config)["topics"]
    assert "number of rows of each label and topic" in [mechanism.query for mechanism in said.mechanisms]


def test_a_row_is_encoded_behind_its_own_label_and_topic(make_config, tokenizer, label_names):
    from understudy.data.private_rows import PrivateRows

    config = make_config(topics=GIVEN)
    rows = PrivateRows(["cold soup", "a ferry", None, "soup"], [0, 2, None, 2], label_names)
    encoded = functools.partial(encode, tokenizer=tokenizer, config=config)(rows)
    assert encoded.topic.tolist() == [1, 0, 0, 1]
    width = encoded.prompts.width
    for row, place in ((0, 1), (1, 4), (3, 5)):
        assert encoded.input_ids[row, :width].tolist() == encoded.prompts.input_ids[place].tolist()
        assert encoded.attention_mask[row, :width].tolist() == encoded.prompts.attention_mask[place].tolist()
    assert not encoded.loss_mask[:, :width].any()
