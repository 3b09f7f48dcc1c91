"""Small random models of four families, with and without a bias of the head, tied and untied.

And the figures of a made-up run, for the tests of the report.
"""

import numpy as np
import pytest
import random_models
import torch
from torch import nn

from understudy.evaluation.metrics import Histogram, Metrics
from understudy.methods.gradient_matching.metric_names import METRIC_NAMES
from understudy.models.loading import LoadedModel

LABEL_NAMES = ("negative", "positive", "undecided")
WIDTH = 16


@pytest.fixture(autouse=True)
def small_tensors(one_thread):
    """A second thread would only wait."""


def build(family: str, *, bias: bool = False, tied: bool = True, vocabulary: int = 61):
    """A model whose weights are large enough for predictions far from uniform."""
    # Embeddings narrower than the hidden states, which OPT projects back before the head.
    narrow = {"word_embed_proj_dim": 12, "pad_token_id": 1} if family == "opt" else {}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": tied}
    model = random_models.random_model(family, vocabulary=vocabulary, width=WIDTH, positions=96, **narrow, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        old = model.lm_head
        head = nn.Linear(old.in_features, old.out_features, bias=bias)
        head.weight = model.get_input_embeddings().weight if tied else nn.Parameter(torch.randn_like(old.weight))
        model.lm_head = head
        for parameter in {id(p): p for p in model.parameters()}.values():
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.fixture
def random_model():
    return build


@pytest.fixture(scope="session")
def tokenizer(small_tokenizer):
    return small_tokenizer


@pytest.fixture
def make_base(tokenizer):
    """A random model with a small tokenizer."""

    def make(family: str = "llama", **changes) -> LoadedModel:
        model = build(family, vocabulary=len(tokenizer), **changes)
        return LoadedModel(model, tokenizer, digest="0" * 64, name=f"random-{family}", notes=())

    return make


@pytest.fixture
def label_names() -> tuple[str, ...]:
    return LABEL_NAMES


@pytest.fixture(scope="session")
def matching_metrics() -> Metrics:
    """What the method adds, as its evaluation would have found it."""
    values = {"matching.drawn": 80.0, "matching.kept": 26.0, "matching.shortfall": 14.0}
    values |= {
        "matching.dropped.wrong_label": 39.0,
        "matching.dropped.unbalanced": 10.0,
        "matching.dropped.surplus": 5.0,
    }
    values |= {"matching.loss.median": 0.138, "matching.loss.dropped_median": 0.213}
    values |= {"matching.loss.prompt_only_median": 0.186, "matching.signal_to_noise_bound": 23.1}
    intervals = {}
    for model, accuracies in (
        ("tiny-gpt2", (0.49, 0.53, 0.625)),
        ("a-very-long-name-" * 3, (0.525, 0.62, 0.77)),
    ):
        for condition, accuracy in zip(("prompt_only", "synthetic", "real"), accuracies, strict=True):
            name = f"utility.transfer.{model}.{condition}.accuracy"
            values[name], intervals[name] = accuracy, (accuracy - 0.07, accuracy + 0.07)
    values |= {"utility.transfer.real_rows": 40.0, "fidelity.train_frechet_rows": 26.0}
    values |= {"fidelity.train_frechet": 1.149, "fidelity.prompt_only.train_frechet": 1.214}
    values |= {"fidelity.few_real.train_frechet": 0.502}
    for condition, loss in (("synthetic", 7.37), ("prompt_only", 4.22), ("real", 5.31)):
        values[f"language_model.log_perplexity.{condition}"] = loss
    for side, median in (("synthetic", 1.111), ("holdout", 0.659)):
        values |= {f"memorization.nearest_median.{side}": median, f"memorization.nearest_least.{side}": median / 3}
    values["memorization.nearest_share"] = 0.0
    for side, errors in (("", (0.7, 1.2, 1.0)), ("prompt_only.", (0.52, 0.32, 0.37)), ("real.", (0.24, 0.29, 0.31))):
        values |= {f"matching.gradient_error.{side}step_{50 * i}": error for i, error in enumerate(errors)}
    for condition, value in (("", -0.05), ("positive_control.", 0.375), ("null_control.", 0.05)):
        values |= {f"audit.mia.{condition}advantage": value, f"audit.mia.{condition}auc": 0.5 + value / 2}
        intervals |= {f"audit.mia.{condition}advantage": (value - 0.225, value + 0.25)}
        intervals |= {f"audit.mia.{condition}auc": (0.4 + value / 2, 0.6 + value / 2)}
    values |= {"audit.mia.rows": 40.0, "audit.mia.detectable_epsilon": 0.484}
    generator = np.random.default_rng(1)

    def histogram(counted: str, high: float, **means: float) -> Histogram:
        edges = np.linspace(0, high, 25)
        drawn = {name: np.histogram(generator.normal(mean, high / 9, 200), edges)[0] for name, mean in means.items()}
        shares = {name: tuple((counts / counts.sum()).tolist()) for name, counts in drawn.items()}
        return Histogram(edges=tuple(edges.tolist()), shares=shares, counted=counted)

    histograms = {
        "matching.loss": histogram("matching losses", 0.6, kept=0.15, dropped=0.3, prompt_only=0.25),
        "memorization.nearest": histogram("distances", 1.5, synthetic=1.1, holdout=0.66),
    }
    return Metrics(values=values, intervals=intervals, histograms=histograms, declared=METRIC_NAMES)
