"""An accountant that looks at all losses at once takes a fraction of the library's time, and says the same epsilon.

    python benchmarks/accounting_speed.py OUT.json [--repeats 3]

For each event epsilon is asked of dp_accounting's own PLD accountant and of this package's, in turn, in one process:
processor time, median of the repeats, and how far the two epsilons are apart. The last column is the time of a whole
calibration of the noise to the event's epsilon, which asks several times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from dp_accounting import pld
from tables import Row, print_table, write_figures

from understudy.privacy import accounting
from understudy.privacy.calibration import calibrate_noise_multiplier
from understudy.privacy.events import sgd_event

# (sampling probability, noise multiplier, steps, delta), from many small batches to a few large ones.
EVENTS = [
    (0.01, 1.0, 1000, 1e-5),
    (0.1, 1.26, 38, 1e-5),
    (0.2, 0.77, 10, 1e-5),
    (0.4, 0.68, 5, 1e-3),
    (1.0, 1.04, 3, 1e-5),
]


def main() -> None:
    options = _options()
    rows = [measured(*event, repeats=options.repeats) for event in EVENTS]
    print_table(rows)
    write_figures(options.out, {"repeats": options.repeats, "events": rows})


def measured(q: float, noise_multiplier: float, steps: int, delta: float, *, repeats: int) -> Row:
    """One line of the table."""
    event = sgd_event(sampling_probability=q, noise_multiplier=noise_multiplier, steps=steps)
    theirs, library = timed(lambda: pld.PLDAccountant(accounting.RELATION).compose(event).get_epsilon(delta), repeats)
    ours, package = timed(lambda: accounting.epsilon_pld(event, delta), repeats)
    _, whole = timed(lambda: _calibrated(q, steps, ours, delta), repeats)
    return {
        "q": str(q),
        "noise multiplier": str(noise_multiplier),
        "steps": str(steps),
        "epsilon": f"{ours:.4f}",
        "apart": f"{abs(ours - theirs) / theirs:.0e}",
        "library s": f"{library:.3f}",
        "package s": f"{package:.3f}",
        "ratio": f"{package / library:.2f}",
        "calibration s": f"{whole:.2f}",
    }


def timed(ask: Callable[[], float], repeats: int) -> tuple[float, float]:
    """An answer, and the median of the processor times that it took."""
    seconds = []
    for _ in range(repeats):
        accounting._ANSWERS.clear()
        start = time.process_time()
        answer = ask()
        seconds.append(time.process_time() - start)
    return answer, statistics.median(seconds)


def _calibrated(q: float, steps: int, epsilon: float, delta: float) -> float:
    return calibrate_noise_multiplier(
        lambda z: sgd_event(sampling_probability=q, noise_multiplier=z, steps=steps),
        epsilon=epsilon,
        delta=delta,
        cache=None,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
