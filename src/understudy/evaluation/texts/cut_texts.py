"""How many private texts are longer than what a run reads of one: a text is never shortened in silence.

The number depends on private rows and is internal, as all figures are.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy.evaluation.metrics import Metrics
from understudy.generation.config import Reading
from understudy.generation.prompts import encode_text, uses_chat
from understudy.models.loading import load_tokenizer


def measure_cut(texts: Sequence[str], reading: Reading) -> Metrics:
    """`cut.train.texts`, internal.

    Args:
        texts: private training texts.
        reading: of the run.
    """
    tokenizer = load_tokenizer(reading)
    # Behind a chat's opening a text begins without the space that sets it off elsewhere.
    lead = "" if reading.prompt is not None and uses_chat(tokenizer, reading.prompt) else " "
    cut = sum(len(encode_text(tokenizer, text, lead=lead)) > reading.tokens for text in texts)
    return Metrics(values={"cut.train.texts": float(cut)})
