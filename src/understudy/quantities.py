"""Types of the values of settings, with the bounds that all values of a kind have; imports nothing of ours.

A setting with closer bounds names them itself, and both hold.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1, le=100_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=100_000_000)]
Size = Annotated[int, Field(ge=1, le=65_536)]  # what memory grows with: a width, a rank, a batch
Positive = Annotated[float, Field(gt=0, le=1e6)]
Probability = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(gt=0, lt=1)]  # of a whole, the rest of which goes elsewhere
LearningRate = Annotated[float, Field(gt=0, le=10)]
NonEmpty = Annotated[str, Field(min_length=1)]
PublicSeed = Annotated[int, Field(ge=0, lt=2**63)]
NumpySeed = Annotated[int, Field(ge=0, lt=2**32)]
