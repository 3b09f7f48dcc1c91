"""Claim: shifting the cache of the upper layers alone steers as far as shifting that of all, in less time.

For each model a head is fitted on public sentences, and texts are drawn under one prompt without label, steered to
either label (`steering_budget.py` says how). Here the share of the layers that are shifted varies, with the default
budget. What counts is how probable a classifier of sentence embeddings, fitted on other public sentences, finds the
wanted label, and how many nats per token the untrained model gives the texts. All conditions have the same seeds, so
that differences are paired by text; intervals are 95 % of a bootstrap over texts.

    python benchmarks/steering_layers.py OUT.json --data FOLDER [--models tiny-llama ...] [--layers 1 0.5 0.25]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from steering_budget import arguments, draw, fitted_head, public_sentences, text_nats
from tables import print_table, write_figures

from understudy.compute import Compute
from understudy.evaluation.texts.encoder import embed, load_encoder
from understudy.models.loading import load_model

Floats = npt.NDArray[np.float64]


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    texts, labels = public_sentences(options.data, options.sentences)
    half, encoder = len(texts) // 2, load_encoder()
    judge = LogisticRegression(max_iter=1000).fit(embed(texts[half:], encoder), labels[half:])
    print(f"judge on sentences of the other half: {judge.score(embed(texts[:600], encoder), labels[:600]):.3f}")
    rows: list[dict[str, Any]] = []
    for name in options.models:
        base = load_model(name, compute=Compute("cpu", options.precision))
        head = fitted_head(base, texts[: options.fitted], labels[: options.fitted])
        conditions: dict[float, tuple[Floats, Floats, float]] = {}
        for share in (*options.layers, 0.0):
            began = time.process_time()
            steering = {"steer": "key_value", "layers": share} if share else {"steer": "none"}
            drawn, wanted = draw(base, head, steering=steering, budget=options.budget, per_label=options.per_label)
            spent = time.process_time() - began
            probable = judge.predict_proba(embed(drawn, encoder))[np.arange(len(wanted)), wanted]
            conditions[share] = probable, np.array([text_nats(base, text) for text in drawn]), spent
            rows.append({"model": Path(name).name, "layers": f"{share:g}", **_figures(conditions, share)})
            print_table(rows[-1:])
    print_table(rows, "Shares of the layers")
    write_figures(options.out, {"layers": rows}, seed=0, per_label=options.per_label, budget=options.budget)


def _figures(conditions: dict[float, tuple[Floats, Floats, float]], share: float) -> dict[str, str]:
    """Of one condition, and how far it is from the first."""
    probable, nats, spent = conditions[share]
    first, first_nats, _ = conditions[next(iter(conditions))]
    picked = np.random.default_rng(0).integers(len(nats), size=(2000, len(nats)))

    def per_token(of: Floats) -> Floats:
        total: Floats = of[picked].sum(1)
        return total[:, 0] / total[:, 1]

    return {
        "probability": f"{probable.mean():.3f}",
        "minus first": _interval((probable - first).mean(), (probable - first)[picked].mean(1)),
        "nats per token": f"{nats.sum(0)[0] / nats.sum(0)[1]:.3f}",
        "nats minus first": _interval(
            nats.sum(0)[0] / nats.sum(0)[1] - first_nats.sum(0)[0] / first_nats.sum(0)[1],
            per_token(nats) - per_token(first_nats),
        ),
        "seconds": f"{spent:.0f}",
    }


def _interval(value: float, again: Floats) -> str:
    low, high = np.quantile(again, [0.025, 0.975])
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def _options() -> argparse.Namespace:
    parser = arguments(__doc__, per_label=1500)
    parser.add_argument("--layers", nargs="+", type=float, default=[1.0, 0.5, 0.25])
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--budget", type=float, default=0.05)
    return parser.parse_args()


if __name__ == "__main__":
    main()
