"""Public topics whose words stand in prompts: their settings, public values only (CTCL, arXiv 2503.12347)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from understudy.errors import UnderstudyError
from understudy.frozen import Frozen
from understudy.quantities import Part, Size, setting

Topics = tuple[tuple[str, ...], ...]
Word = Annotated[str, Field(min_length=1, max_length=50, pattern=r"^[^\r\n]*$")]


class TopicsConfig(Frozen):
    """Public topics, whose words stand in the prompt of every text (ours here; CTCL, arXiv 2503.12347)."""

    number: int = setting(
        0, "Topics, found in the base model's own texts before the charge, 0 to 1024; 0: none. paper 0.", le=1024, ge=0
    )
    words: int = setting(3, "Words of a topic that is found, 1 to 10.", le=10, ge=1)
    texts: Size = setting(200, "Texts of each label that the base model writes for the topics to be found in.")
    share: Part = setting(
        0.1, "Part of epsilon and delta that sets the noise of the histogram of topics, between 0 and 1."
    )
    keywords: Annotated[tuple[tuple[Word, ...], ...], Field(min_length=1)] | Literal["auto"] = setting(
        "auto", "The words of each topic; auto: found, as many topics as `number` says."
    )

    @field_validator("keywords")
    @classmethod
    def _tells_topics_apart(cls, value: Topics | Literal["auto"]) -> Topics | Literal["auto"]:
        if value != "auto" and (not all(value) or len(set(map(frozenset, value))) < len(value)):
            raise ValueError("expected one or more words for every topic, and no two topics with the same words")
        return value

    @property
    def active(self) -> bool:
        """Whether prompts name a topic and the rows are asked how many there are of each."""
        return self.number > 0 or self.keywords != "auto"

    @property
    def found(self) -> Topics:
        """The words of each topic; none where there are no topics.

        Raises:
            UnderstudyError: they are still to be found.
        """
        if not self.active:
            return ()
        if self.keywords == "auto":
            raise UnderstudyError("topics.keywords=auto: expected the words of every topic; resolve the settings first")
        return self.keywords

    @property
    def most_words(self) -> int:
        """Words of the longest topic, 0 without topics."""
        if not self.active:
            return 0
        return self.words if self.keywords == "auto" else max(map(len, self.keywords))
