"""Reviews that are easy to tell apart, and the figures and statement of a made-up run."""

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from understudy.evaluation.metrics import Metrics
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.texts import diversity
from understudy.evaluation.texts.encoder import Encoder, load_encoder
from understudy.privacy.ledger.records import Charge, KeyMaterial, SourceRecord
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.queries import Query, queries_to_json
from understudy.privacy.statement import Access, PretrainedModel, StatementFacts, build_statement, mechanism_facts

PRAISE = ("wonderful", "moving", "funny", "charming", "brilliant", "warm", "clever", "delightful")
BLAME = ("dull", "boring", "awful", "clumsy", "lifeless", "tedious", "stupid", "dreadful")
THINGS = ("film", "story", "cast", "ending", "script", "music", "comedy", "drama")


def reviews(n: int, *, seed: int, names: tuple[str, ...] = ("negative", "positive")) -> LabelledTexts:
    """Short made-up reviews, label 1 with words of praise."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    texts = []
    for label in labels:
        first, second = generator.choice(PRAISE if label else BLAME, 2, replace=False)
        one, other = generator.choice(THINGS, 2, replace=False)
        texts.append(f"the {one} is {first} and the {other} is {second} , take number {generator.integers(1000)}")
    return LabelledTexts(texts, labels, names)


@pytest.fixture
def one_thread():
    """For tests of small tensors, where a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_mechanisms():
    """Opened with the list of queries of the plan that is run, as a charge of it would."""

    def make(plan, recorder=None, charge: str = "charge") -> Mechanisms:
        return Mechanisms(KeyMaterial(b"s" * 32, charge, b"t" * 32, plan.queries), recorder=recorder)

    return make


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return load_encoder()


@pytest.fixture(scope="session")
def make_reviews():
    return reviews


CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)

# Long enough that the report folds it.
LONG_LIST = [
    Query(kind="gaussian_sum", name=f"sum/{i}", units=600, steps=120, sensitivity=0.1, noise_multiplier=80.0 + i)
    for i in range(12)
]


@pytest.fixture(scope="session")
def metrics() -> Metrics:
    values = {"utility.majority.accuracy": 0.52, "utility.test_rows": 400.0, "utility.confidence_level": 0.95}
    for condition, accuracy in (("prompt_only", 0.612), ("synthetic", 0.708), ("real", 0.764)):
        values[f"utility.{condition}.accuracy"] = values[f"utility.probe.{condition}.accuracy"] = accuracy
        values[f"utility.transformer.{condition}.accuracy"] = accuracy - 0.02
    values |= {"utility.synthetic_minus_real.accuracy": -0.056, "utility.synthetic_minus_prompt_only.accuracy": 0.096}
    intervals = {
        name: (value - 0.03, value + 0.03)
        for name, value in values.items()
        if name.endswith("accuracy") and "maj" not in name
    }
    values |= {"fidelity.mauve": 0.71, "fidelity.mauve_ceiling": 0.94, "fidelity.prompt_only.mauve": 0.32}
    values |= {"fidelity.frechet": 0.183, "fidelity.frechet_floor": 0.092, "fidelity.prompt_only.frechet": 0.311}
    values["fidelity.rows"] = 200.0
    for n, private, unseen in (
        (3, 0.214, 0.209),
        (4, 0.068, 0.061),
        (5, 0.021, 0.0192),
        (6, 0.008, 0.0075),
        (7, 0.0, 0.0),
    ):
        values |= {f"memorization.ngram_{n}.synthetic": private, f"memorization.ngram_{n}.holdout": unseen}
    values |= {"memorization.longest_match.all_private": 9.0, "memorization.exact_duplicates.all_private": 0.0}
    values |= {"memorization.longest_match.synthetic": 8.0, "memorization.longest_match.holdout": 7.0}
    values |= {"label_fidelity.synthetic": 0.803, "label_fidelity.real": 0.764, "label_fidelity.prompt_only": 0.62}
    values |= {"label_fidelity.synthetic.label_0": 0.77, "label_fidelity.synthetic.label_1": 0.836}
    for prefix, factor in (("", 0.9), ("real.", 1.0)):
        values |= {f"diversity.{prefix}distinct_{n}": factor * share for n, share in ((1, 0.2), (2, 0.7), (3, 0.9))}
        values |= {f"diversity.{prefix}length_q{q}": words for q, words in ((5, 8.0), (50, 20.0), (95, 41.0))}
        values |= {f"diversity.{prefix}duplicates": 0.01, f"diversity.{prefix}length_mean": 21.3}
    generator = np.random.default_rng(0)
    texts = {
        name: ["w " * int(n) for n in generator.gamma(shape, 20 / shape, 300)]
        for name, shape in (("synthetic", 5), ("real", 4))
    }
    return Metrics(values=values, intervals=intervals, lengths=diversity.length_histogram(texts))


@pytest.fixture(scope="session")
def make_statement():
    """The real thing: built by `privacy.statement` for a charge of epsilon 3 (or another) out of a budget of 8."""

    def make(epsilon: float = 3.0) -> dict:
        source = SourceRecord(
            name="reviews", unit="example", relation="replace_special", epsilon=8.0, delta=1e-4, n=600,
            label_names=("negative", "positive"), max_length=64, composition="sum",
            registered_at="2026-01-01T00:00:00Z",
        )  # fmt: skip
        charge = Charge(
            id="4f1c9d0a7be84f3fa2f0a1b2c3d4e5f6", source="reviews", request_key="r", attempt=1, new=False,
            kind="counted" if math.isfinite(epsilon) else "internal", queries=queries_to_json(LONG_LIST),
            epsilon=epsilon, delta=1.2e-5, unit="example", relation="replace_special", accountant="PLD",
            epsilon_rdp=3.41,
            status="released", simulation=False, key_id="k", code_digest="c" * 64, created_at="2026-01-02T03:00:00Z",
            released_at="2026-01-02T03:04:00Z",
        )  # fmt: skip
        mechanisms = tuple(mechanism_facts(query, asks="sum of clipped gradients") for query in LONG_LIST)
        facts = StatementFacts(
            mechanisms=mechanisms, contributions="each record counts once; per-example gradients are clipped",
            trust="the curator", against="whoever sees the export", released=("synthetic.parquet", "model.safetensors"),
            accesses=(Access(task="train", reads="all rows", through="noised gradients"),), choices="public defaults",
            declared_public={"n": 600, "labels": ["negative", "positive"]}, config_digest="d" * 64, restarts=0,
            pretrained_models=(PretrainedModel(name="tiny-llama", digest="e" * 64),), time="2026-01-02T03:04:00Z",
        )  # fmt: skip
        return build_statement(
            facts, charge=charge, source=source, spent=(4.5 if math.isfinite(epsilon) else 1.5, 2.2e-5)
        )

    return make


@pytest.fixture(scope="session")
def statement(make_statement) -> dict:
    return make_statement()


@pytest.fixture(scope="session")
def samples() -> list[dict[str, str]]:
    texts = ["a warm and funny film that never loses its way .", "flat acting and a story that goes nowhere ."]
    rows = [{"label": ("positive", "negative")[i % 2], "text": texts[i % 2]} for i in range(40)]
    rows[2]["text"] = "unbreakable" * 40
    return rows


@pytest.fixture
def browse(tmp_path):
    """Run headless Chromium on a page; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: the page's layout can only be measured in a browser")

    def run(page: Path, *options: str, width: int, height: int = 1000) -> str:
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},{height}", *options, f"file://{page}",
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout

    return run
