"""How much is computed at a time; numbers, so that they are known without torch."""

from typing import Final

# Logits held at a time. Fewer tokens make slow matrix products, more only take memory.
LOGITS_AT_ONCE: Final = 1 << 23
# Examples whose clipped gradients are added up in float32: at most 2 * 32 * 32 * 2^-24 = 2^-13 of a clip norm is lost.
ROWS_IN_FLOATS: Final = 32
