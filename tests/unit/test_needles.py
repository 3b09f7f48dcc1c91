"""The tests of leaks look for private texts with it, so it must find what Python's `in` finds."""

import random

import pytest
from needles import found_in


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_in_finds(seed):
    draw = random.Random(seed)
    needles = [bytes(draw.choices(b"ab ", k=draw.choice([1, 7, 8, 9, 12, 30]))) for _ in range(60)]
    parts = [needle[: draw.randint(1, 30)] for needle in needles] + [bytes([byte]) for byte in range(256)]
    content = b"".join(draw.choices(parts, k=300))
    wanted = [needle for needle in needles if needle in content]
    assert 0 < len(wanted) < len(needles)
    assert found_in(content, needles) == wanted


@pytest.mark.parametrize("at", range(9))
def test_a_place_at_either_end_is_found(at):
    assert found_in(b"." * at + b"a private row", [b"a private row", b"another one"]) == [b"a private row"]
    assert found_in(b"a private row" + b"." * at, [b"a private row"]) == [b"a private row"]
    assert found_in(b"", [b"a private row"]) == found_in(b"a private", [b"a private row"]) == []
