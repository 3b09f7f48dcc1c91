"""Questions about texts that fit a context: the texts are shortened, all to one length, and the question stays whole.

`PairEncoder.prompts` cuts the end of what is too long, where the question stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from understudy.errors import InputError
from understudy.generation.instructions import PairEncoder
from understudy.models.loading import LoadedModel


def context_for_questions(model: LoadedModel) -> int:
    """Tokens of a prompt, at most; 4096 where the model names no context."""
    return int(getattr(model.model.config, "max_position_embeddings", 0) or 4096)


def fitted_question(
    write: Callable[..., str], texts: Sequence[str], encoder: PairEncoder, *, max_length: int
) -> tuple[str, bool]:
    """A question about some texts, each with as many of its first characters as fit, and whether one was shortened.

    Args:
        write: puts the texts into the question.
        texts: its arguments; no text keeps more characters than the longest of the others that was shortened.
        encoder: writes the question for the model that is asked.
        max_length: tokens of the prompt, at most.

    Raises:
        InputError: the question has no room beside one character of each text.
    """
    whole = write(*texts)
    if encoder.fits(whole, max_length=max_length):
        return whole, False
    fitting, beyond = 0, max(map(len, texts))
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if encoder.fits(write(*(text[:middle] for text in texts)), max_length=max_length):
            fitting = middle
        else:
            beyond = middle
    if fitting == 0:
        raise InputError(
            f"max_length={max_length}: expected a context with room for a question and the texts that it is about, "
            "found one that is too short; choose a model with a longer context to judge"
        )
    return write(*(text[:fitting] for text in texts)), True
