"""A tokenizer of a tenth of the shipped one's tokens, for random models: what grows with the vocabulary grows less."""

import copy
import json

import pytest
from tokenizers import Tokenizer

from understudy.models.loading import load_model

TOKENS = 1024


@pytest.fixture(scope="session")
def small_tokenizer():
    """The shipped tokenizer of tiny-llama with its first tokens and the merges among them; it encodes every text."""
    tokenizer = copy.deepcopy(load_model("tiny-llama").tokenizer)
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    known = {token: number for token, number in whole["model"]["vocab"].items() if number < TOKENS}
    merges = [pair for pair in whole["model"]["merges"] if "".join(pair) in known]
    whole["model"] |= {"vocab": known, "merges": merges}
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(whole))
    assert len(tokenizer) == TOKENS
    return tokenizer
