import collections
import re

import pyarrow.parquet as pq
import pytest

from understudy.data.samples import LABEL_NAMES, Chooser, generate, write_all
from understudy.data.tables import LabelledColumns, check_clients, check_instructions, check_labelled, read_source
from understudy.errors import InputError
from understudy.shipped import SAMPLES

SIZES = {"reviews": 600, "reviews-test": 200, "clinic": 300, "ferry": 1200, "ferry-test": 400, "instructions": 200}


@pytest.mark.parametrize("name", [*SIZES, "clients", "public"])
def test_the_shipped_file_is_what_the_generator_makes(name):
    # Tables, not bytes: the bytes of Parquet depend on the version of pyarrow.
    assert generate(name).equals(pq.read_table(SAMPLES / f"{name}.parquet"))
    assert read_source(f"sample:{name}").equals(generate(name))


def test_write_all_writes_the_shipped_files(tmp_path):
    write_all(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in SAMPLES.glob("*.parquet")}
    for path in tmp_path.iterdir():
        assert pq.read_table(path).equals(pq.read_table(SAMPLES / path.name))


@pytest.mark.parametrize("name", LABEL_NAMES)
def test_labelled_samples_pass_the_checks(name):
    rows = check_labelled(generate(name), LabelledColumns(label_names=LABEL_NAMES[name]))
    counts = collections.Counter(rows.table["label"].to_pylist())
    assert rows.table.num_rows == SIZES[name]
    assert min(counts.values()) > 0.8 * SIZES[name] / len(LABEL_NAMES[name])


@pytest.mark.parametrize(("name", "most"), [("reviews", 0.95), ("ferry", 0.98)])
def test_a_sample_can_be_learned_and_shares_no_text_with_its_test_part(name, most):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    train, test = generate(name).to_pydict(), generate(f"{name}-test").to_pydict()
    assert not set(train["text"]) & set(test["text"])
    words = TfidfVectorizer().fit(train["text"])
    model = LogisticRegression(C=10).fit(words.transform(train["text"]), train["label"])
    # Learnable, and not solved by counting words: some clauses speak of both labels at once.
    assert 0.8 < model.score(words.transform(test["text"]), test["label"]) < most


def test_clinic_messages_hold_something_to_find_and_only_fictional_numbers():
    texts = generate("clinic")["text"].to_pylist()
    numbers = [re.findall(r"\(\d{3}\) 555-01\d\d", text) for text in texts]
    assert all(len(found) == 1 for found in numbers)
    assert len(set(texts)) == len(texts)


def test_public_texts_are_distinct_and_are_not_those_of_the_clients():
    texts = generate("public")["text"].to_pylist()
    assert len(set(texts)) == len(texts) == 240
    assert not set(texts) & set(generate("clients")["text"].to_pylist())


def test_clients_have_several_documents_each():
    rows = check_clients(generate("clients")).table
    counts = collections.Counter(rows["client_id"].to_pylist())
    assert len(counts) == 40
    assert (min(counts.values()), max(counts.values())) == (3, 6)


def test_instructions_are_distinct():
    rows = check_instructions(generate("instructions")).table
    assert len(set(rows["instruction"].to_pylist())) == 200


def test_choices_depend_on_the_seed_alone():
    draws = [[chooser.below(1000) for _ in range(5)] for chooser in map(Chooser, ["a", "a", "b"])]
    assert draws[0] == draws[1] != draws[2]
    # The values themselves are fixed: a change of them would change every shipped sample.
    assert draws[0] == [942, 839, 200, 558, 617]


def test_unknown_sample():
    with pytest.raises(InputError, match="expected one of sample:reviews"):
        generate("nothing")
