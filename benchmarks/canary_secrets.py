"""Claim: reading what a canary's 64 versions begin with once takes at most a tenth of the time of whole rows.

Both ways read the same canaries by the public model, one after the other; their losses are compared. An audit reads
them four times: by the public model, and by what each of its three runs released. Before, it read whole rows six times.
Processor time of one thread; each figure is the median, over repeats, of a ratio of two timings side by side, with the
least and the most.

    python benchmarks/canary_secrets.py --out secrets.json
    python benchmarks/canary_secrets.py --model smollm2-135m-instruct --canaries 2
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import arguments, chosen, spread, write_result

TARGET = 0.1
METHODS = {"conditional-generation": {"variant": "naive"}, "knowledge-distillation": {}, "preference-optimization": {}}
NAMES = ("bad", "good")


def canaries(method: str, model: str, count: int) -> Any:
    """Versions of so many canaries, as an audit of the method reads them."""
    from understudy.auditing.canaries import canary_rows, vocabulary
    from understudy.auditing.canary_secrets import candidates_of, versions
    from understudy.data import tables
    from understudy.models.loading import load_model

    kind, schema = {
        "conditional-generation": ("labelled", tables.LABELLED_SCHEMA),
        "knowledge-distillation": ("instructions", tables.INSTRUCTION_SCHEMA),
        "preference-optimization": ("clients", tables.CLIENT_SCHEMA),
    }[method]
    words = vocabulary(load_model(model).tokenizer)
    rows = canary_rows(kind, count, words=words, labels=len(NAMES), named="measured", schema=schema)
    return versions(rows, candidates_of(rows, words=words, named="measured"))


def reading(method: str, model: str, rows: Any) -> Any:
    """The rows, ready to be read by the public model."""
    from understudy.compute import ON_CPU
    from understudy.lazy import load
    from understudy.methods import registry
    from understudy.methods.reading import RowsToRead

    names = NAMES if method == "conditional-generation" else ()
    config = registry.get(method).config.model_validate({"model": model, **METHODS[method]})
    return load(registry.get(method).row_losses)(RowsToRead(rows, names, config, None, ON_CPU))


def timed(parts: Callable[[], Any]) -> tuple[float, torch.Tensor]:
    """Processor seconds of some parts, and the losses that they give."""
    started = time.process_time()
    with torch.no_grad():
        losses = torch.cat([part() for part in parts()]).double()
    return time.process_time() - started, losses


def measured(method: str, model: str, count: int, repeats: int) -> dict[str, Any]:
    """Seconds of both ways, their ratio, and how far their losses are apart."""
    from understudy.auditing.reconstruction import CANDIDATES
    from understudy.auditing.version_losses import parts_of_versions

    read = reading(method, model, canaries(method, model, count))
    ratios, seconds, apart = [], [], 0.0
    # The first products of a process take longer.
    timed(lambda: parts_of_versions(read, CANDIDATES)[:1])
    for _ in range(repeats):
        whole, by_rows = timed(lambda: read.parts)
        together, by_versions = timed(lambda: parts_of_versions(read, CANDIDATES))
        ratios.append(together / whole)
        seconds.append((whole / count, together / count))
        apart = max(apart, float((by_rows - by_versions).abs().max()))
    each = {name: spread(values) for name, values in zip(("whole", "shared"), zip(*seconds, strict=True), strict=True)}
    return {"ratio": spread(ratios), "seconds_of_a_canary": each, "greatest_difference_in_nats": apart}


def main() -> int:
    options = arguments(__doc__, canaries=16, repeats=3).parse_args()
    torch.set_num_threads(options.threads)
    found = {}
    for method in METHODS:
        found[method] = measured(method, options.model, options.canaries, options.repeats)
        print(f"{method}: {found[method]}, at most {TARGET:g} wanted", flush=True)
    met = all(figures["ratio"]["median"] <= TARGET for figures in found.values())
    sizes = chosen(options, ("model", "canaries", "repeats", "threads"))
    write_result(options.out, {**sizes, "target": TARGET, "met": met, "methods": found})
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
