"""How a long piece of work tells its caller how far it has come; imports nothing of ours."""

from collections.abc import Callable

Progress = Callable[[int, int], None]  # (parts done, parts in all), public numbers only
