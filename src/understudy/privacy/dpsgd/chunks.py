"""How much of the vocabulary's logits is held at a time; a number, so that it is known without torch."""

from typing import Final

# Logits held at a time. Fewer tokens make slow matrix products, more only take memory.
LOGITS_AT_ONCE: Final = 1 << 23
