"""Versions of a text that share what they begin with: the losses of whole rows, from far fewer tokens."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests_support import write_random_model

from understudy.auditing.canaries import vocabulary
from understudy.auditing.canary_secrets import candidates_of, guessed_secrets, versions
from understudy.auditing.row_losses import RowLosses, TokenRows
from understudy.auditing.version_losses import parts_of_versions
from understudy.compute import ON_CPU
from understudy.data import tables
from understudy.lazy import load
from understudy.methods import registry
from understudy.methods.reading import RowsToRead
from understudy.models.loading import load_model

TEXTS = ["film film film good long", "story story story dull short"]
ROWS = {
    "conditional-generation": pa.table({"text": TEXTS, "label": [0, 1]}, schema=tables.LABELLED_SCHEMA),
    "knowledge-distillation": pa.table({"instruction": TEXTS, "response": TEXTS[::-1]}),
    "trajectory-matching": pa.table({"instruction": TEXTS, "response": TEXTS[::-1]}),
    "preference-optimization": pa.table({"client_id": ["a", "b"], "text": TEXTS}),
}
NAMES = {"conditional-generation": ("negative", "positive")}
OWN = {"conditional-generation": {"variant": "naive"}}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    return str(write_random_model(tmp_path_factory.mktemp("model") / "random", positions=256))


def reading(method, rows, model):
    config = registry.get(method).config.model_validate({"model": model, **OWN.get(method, {})})
    return load(registry.get(method).row_losses)(RowsToRead(rows, NAMES.get(method, ()), config, None, ON_CPU))


def read_together(read, count):
    return torch.cat([part() for part in parts_of_versions(read, count)]).numpy()


def tokens_read(model, work):
    """How many tokens meet the model's embeddings while some work is done."""
    counts = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, given, __: counts.append(given[0].numel()))
    try:
        work()
    finally:
        hook.remove()
    return sum(counts)


@pytest.mark.parametrize("method", ROWS)
@pytest.mark.parametrize("model", ["tiny-llama", "random"])
def test_candidates_have_the_losses_of_whole_rows_and_are_guessed_alike(method, model, random_model):
    model = random_model if model == "random" else model
    words = vocabulary(load_model("tiny-llama").tokenizer)
    candidates = candidates_of(ROWS[method], words=words, named="a")
    read = reading(method, versions(ROWS[method], candidates), model)
    whole, together = read.values(), read_together(read, 64)
    assert together.shape == (128,)
    assert len(set(together[:64].tolist())) > 32, "candidates differ"
    assert together == pytest.approx(whole, abs=1e-5)
    before = np.random.default_rng(0).normal(size=(2, 64))
    likely = (before - whole.reshape(2, 64)).argmax(1).tolist()
    assert guessed_secrets(before, together.reshape(2, 64), likely).hits == 2
    few, many = (tokens_read(read.model, work) for work in (lambda: read_together(read, 64), read.values))
    assert few < many / 2


def test_words_of_several_tokens_that_merge_with_the_text_before_are_read_as_they_are(random_model):
    """Versions of other lengths, of which one is where another begins, and a row whose tokens share nothing."""
    texts = ["the film was", "the film was good", "the film wasabi is extraordinarily green", "of another kind"]
    for method in ("preference-optimization", "conditional-generation"):
        rows = pa.table({"text": texts, "label": [0, 0, 0, 0]}, schema=tables.LABELLED_SCHEMA)
        read = reading(method, rows, random_model)
        for count in (1, 2, 4):
            assert read_together(read, count) == pytest.approx(read.values(), abs=1e-5)


def test_tokens_that_do_not_count_and_rows_without_a_common_token(random_model):
    loaded = load_model(random_model)
    ids = torch.tensor([[5, 6, 7, 8], [6, 6, 7, 9]])
    mask = torch.ones_like(ids)
    counted = torch.tensor([[True, False, True, True], [True, True, True, True]])
    read = RowLosses(loaded.model, (), lambda: TokenRows(ids, mask, counted))
    with torch.no_grad():
        logits = loaded.model(input_ids=ids).logits
    losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    wanted = [float(losses[0, 1:].mean()), float(losses[1].mean())]
    assert read_together(read, 2) == pytest.approx(wanted, abs=1e-5)


def test_a_model_without_tokens_reads_row_by_row():
    parts = (lambda: torch.tensor([1.0, 2.0]), lambda: torch.tensor([3.0]))
    assert read_together(RowLosses(torch.nn.Module(), parts), 3).tolist() == [1, 2, 3]
