"""What a computation on private rows is paid for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from understudy.privacy.mechanisms import Mechanisms

C = TypeVar("C")
S = TypeVar("S")


@dataclass(frozen=True)
class Charged(Generic[C, S]):
    """What private rows are asked under one charge.

    *Guarantee*: what is computed from rows through `mechanisms` alone is (epsilon, delta)-DP as charged, with n and the
    label list public; at epsilon = inf there is no guarantee, and the result is private.

    Attributes:
        config: the charged settings (ADR 0005).
        schedule: the charged queries, as the method reads them.
        mechanisms: of the charge; they answer these queries and no others.
    """

    config: C
    schedule: S
    mechanisms: Mechanisms
