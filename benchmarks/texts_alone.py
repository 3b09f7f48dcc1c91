"""Claim: texts embedded one by one, a thread for each, take less of both cores than one after the other with both.

A row's embedding in the class means of conditional generation is computed alone. Ways take turns within one process:
each text with all threads, one after the other; a text on each thread; and the same with one thread. The last two give
the same bytes, which is checked. Also claimed: with one thread, products by weights that are laid out once take less
than those that torch makes otherwise, for texts one by one and in batches.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/texts_alone.py --out texts-alone.json
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from measuring import arguments, chosen, spread, write_result

from understudy.data.samples import generate
from understudy.evaluation.texts import encoder as module
from understudy.evaluation.texts.encoder import Encoder, each_alone, load_encoder

SETTINGS = ("texts", "threads", "repeats")


def shared(texts: list[str], encoder: Encoder) -> list[bytes]:
    """One text after the other, each with all threads."""
    return [encoder.encode([text])[0].tobytes() for text in texts]


def a_thread_each(texts: list[str], encoder: Encoder) -> list[bytes]:
    """What the package does."""
    return [vector.tobytes() for vector in each_alone(texts, encoder)]


WAYS: dict[str, tuple[bool, Callable[[list[str], Encoder], list[bytes]]]] = {
    "shared": (True, shared),
    "each": (True, a_thread_each),
    "one_thread": (False, a_thread_each),
}


def in_batches(texts: list[str], encoder: Encoder) -> list[bytes]:
    """As an evaluation reads them."""
    return [vector.tobytes() for vector in encoder.encode(texts)]


def unpacked_encoder() -> Encoder:
    """With the layers that sentence-transformers gives it."""
    pack = module.pack_for_good
    module.pack_for_good = lambda _: None
    try:
        return load_encoder()
    finally:
        module.pack_for_good = pack


def processor_seconds(way: Callable[[list[str], Encoder], list[bytes]], texts: list[str], encoder: Encoder) -> float:
    began = time.process_time()
    way(texts, encoder)
    return time.process_time() - began


def packed_over_unpacked(texts: list[str], repeats: int) -> dict[str, dict[str, float]]:
    """Processor time of one thread, in turns; the first of each warms up."""
    torch.set_num_threads(1)
    packed, plain = load_encoder(), unpacked_encoder()
    assert np.allclose(packed.encode(texts), plain.encode(texts), atol=1e-5)
    found = {}
    for name, way in (("alone", a_thread_each), ("batches", in_batches)):
        taken = [tuple(processor_seconds(way, texts, one) for one in (packed, plain)) for _ in range(repeats + 1)]
        found[name] = spread([ours / theirs for ours, theirs in taken[1:]])
    return found


def main() -> None:
    parser = arguments(__doc__, texts=200, repeats=5)
    parser.set_defaults(threads=2)
    options = parser.parse_args()
    texts, encoder = generate("ferry")["text"].to_pylist()[: options.texts], load_encoder()
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    made: dict[str, list[bytes]] = {}
    for repeat in range(options.repeats + 1):
        for name, (all_threads, way) in WAYS.items():
            torch.set_num_threads(options.threads if all_threads else 1)
            wall, processor = time.perf_counter(), time.process_time()
            made[name] = way(texts, encoder)
            took = {"processor": time.process_time() - processor, "wall": time.perf_counter() - wall}
            if repeat:  # the first warms up
                seconds[name].append(took)
    assert made["each"] == made["one_thread"]
    ratios = {}
    for clock in ("processor", "wall"):
        for name in ("each", "one_thread"):
            both = zip(seconds[name], seconds["shared"], strict=True)
            values = [took[clock] / other[clock] for took, other in both]
            ratios[f"{name}.{clock}"] = [min(values), statistics.median(values), max(values)]
    packed = packed_over_unpacked(texts, options.repeats)
    print(json.dumps({**ratios, "packed": packed}, indent=1))
    result = {"settings": chosen(options, SETTINGS), "load": os.getloadavg()[0], "seconds": seconds}
    write_result(options.out, result | {"ratios_to_shared": ratios, "packed_over_unpacked": packed})


if __name__ == "__main__":
    main()
