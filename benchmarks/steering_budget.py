"""What a steering budget buys and costs, on several models: label fidelity against nats per token.

    python benchmarks/steering_budget.py OUT.json --data FOLDER [--models tiny-llama ...] [--budgets 0.03 0.1 0.3]

For each model a head is fitted on the mean states of public labelled sentences (film reviews of the public corpus), as
the method's own head would be, but without noise: what is measured is the steering, not the head. Texts are then drawn
from the untrained model under one prompt without label, steered to either label, for each budget. Fidelity is the share
whose label a TF-IDF classifier on other public sentences finds; nats per token are those of the untrained model for its
own texts, unsteered and steered. Every number comes from one run of one process.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from tables import print_table, write_figures

from understudy.generation.config import SamplingConfig, SteeringConfig
from understudy.generation.prompts import build_prompts, encode_text, row_seeds, special_ids, special_token_ids
from understudy.generation.sampling import backbone, sample
from understudy.generation.steering import steer_towards
from understudy.models.loading import LoadedModel, load_model

NAMES = ("negative", "positive")
ABOUT = "one-sentence film reviews"
FORM = re.compile(r"Sentiment: (positive|negative)", re.IGNORECASE)


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    texts, labels = public_sentences(options.data, options.sentences)
    half = len(texts) // 2
    judge = _judge(texts[half:], labels[half:])
    print(f"judge on the other half: {judge(texts[:half], labels[:half]):.3f}", flush=True)
    rows = []
    for name in options.models:
        base = load_model(name)
        head = fitted_head(base, texts[: options.fitted], labels[: options.fitted])
        plain = None
        for budget in (0.0, *options.budgets):
            for steer in ("hidden", "key_value") if budget else ("none",):
                drawn, wanted = draw(base, head, steering={"steer": steer}, budget=budget, per_label=options.per_label)
                nats = nats_per_token(base, drawn)
                plain = nats if plain is None else plain
                fidelity = judge(drawn, wanted)
                spread = 1.96 * (fidelity * (1 - fidelity) / len(drawn)) ** 0.5
                rows.append(
                    {
                        "model": Path(name).name,
                        "steer": steer,
                        "budget": f"{budget:g}",
                        "fidelity": f"{fidelity:.3f} +- {spread:.3f}",
                        "nats per token": f"{nats:.3f}",
                        "above unsteered": f"{nats - plain:+.3f}",
                    }
                )
                print_table(rows[-1:])
    print_table(rows, "Steering budgets")
    write_figures(options.out, {"steering": rows}, seed=0, per_label=options.per_label)


def public_sentences(folder: Path, count: int) -> tuple[list[str], list[int]]:
    """First sentences of public reviews that carry their label, as many of each."""
    found: dict[int, list[str]] = {0: [], 1: []}
    for text in pq.read_table(folder / "public_corpus" / "train.parquet", columns=["text"])["text"].to_pylist():
        said = FORM.search(text)
        if said is None:
            continue
        body = re.sub(r"^(Write a movie review\..*?\n|Review:)|Sentiment: \w+", " ", text, flags=re.IGNORECASE)
        words = " ".join(body.split()).split(". ")[0].split()[:32]
        label = int(said[1].lower() == "positive")
        if len(words) >= 8 and len(found[label]) < count // 2:
            found[label].append(" ".join(words))
    each = min(map(len, found.values()))
    pairs = [(found[label][i], label) for i in range(each) for label in (0, 1)]
    return [text for text, _ in pairs], [label for _, label in pairs]


def _judge(texts: list[str], labels: list[int]) -> Any:
    vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    model = LogisticRegression(C=5, max_iter=500).fit(vectors.fit_transform(texts), labels)
    return lambda drawn, wanted: float(np.mean(model.predict(vectors.transform(drawn)) == np.array(wanted)))


def fitted_head(base: LoadedModel, texts: list[str], labels: list[int]) -> torch.nn.Module:
    """A linear head on standardised mean states of public texts, as one affine map."""
    states = torch.stack([_states(base, text).mean(0) for text in texts])
    mean, spread = states.mean(0), states.std(0).clamp(min=1e-6)
    model = LogisticRegression(C=0.05, max_iter=500).fit(((states - mean) / spread).numpy(), labels)
    weight = torch.from_numpy(model.coef_[0]).float() / spread
    head = torch.nn.Linear(states.shape[1], 2)
    with torch.no_grad():
        head.weight.copy_(torch.stack([-weight / 2, weight / 2]))
        bias = torch.tensor(float(model.intercept_[0])) - weight @ mean
        head.bias.copy_(torch.stack([-bias / 2, bias / 2]))
    return head.requires_grad_(False)


def _states(base: LoadedModel, text: str) -> torch.Tensor:
    ids = torch.tensor([[special_ids(base.tokenizer)[0], *encode_text(base.tokenizer, text)]])
    with torch.no_grad():
        found: torch.Tensor = backbone(base.model)(input_ids=ids).last_hidden_state[0, 1:].float()
    return found


def draw(
    base: LoadedModel, head: torch.nn.Module, *, steering: dict[str, Any], budget: float, per_label: int
) -> tuple[list[str], list[int]]:
    """Texts under one prompt for both labels, so that nothing but the steering tells them apart."""
    prompts = build_prompts(base.tokenizer, ("any", "other"), about=ABOUT)
    wanted = [label for label in (0, 1) for _ in range(per_label)]
    one = torch.zeros(len(wanted), dtype=torch.long)
    config = SteeringConfig.model_validate({**steering, "kl_budget": budget})
    rows = sample(
        base.model,
        (prompts.input_ids[one], prompts.attention_mask[one]),
        config=SamplingConfig(max_new_tokens=32),
        seeds=row_seeds(0, range(len(wanted)), purpose="steering-budget"),
        eos=special_ids(base.tokenizer)[1],
        forbidden=special_token_ids(base.tokenizer),
        step_hook=steer_towards(torch.tensor(wanted), config=config, attribute=head, representation="mean"),
        batch_size=32,
    )
    return [base.tokenizer.decode(row, skip_special_tokens=True).strip() for row in rows], wanted


def nats_per_token(base: LoadedModel, texts: list[str]) -> float:
    """Mean negative log-likelihood per token of texts behind the prompt that they were drawn under."""
    total, tokens = np.sum([text_nats(base, text) for text in texts], axis=0)
    return float(total / max(tokens, 1))


def text_nats(base: LoadedModel, text: str) -> tuple[float, int]:
    """Negative log-likelihood of a text behind the prompt, and its tokens."""
    prompts = build_prompts(base.tokenizer, ("any", "other"), about=ABOUT)
    before = prompts.input_ids[0][prompts.attention_mask[0].bool()].tolist()
    own = encode_text(base.tokenizer, text, lead=prompts.lead) if text else []
    if not own:
        return 0.0, 0
    with torch.no_grad():
        logits = base.model(input_ids=torch.tensor([[*before, *own]])).logits[0, len(before) - 1 : -1]
    logp = logits.float().log_softmax(-1)
    return -float(logp.gather(-1, torch.tensor(own)[:, None]).sum()), len(own)


def arguments(doc: str | None, *, per_label: int) -> argparse.ArgumentParser:
    """What every measurement of steered texts asks for."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with public_corpus/train.parquet")
    parser.add_argument("--models", nargs="+", default=["tiny-llama", "tiny-gpt2"])
    parser.add_argument("--sentences", type=int, default=6000)
    parser.add_argument("--fitted", type=int, default=600, help="sentences that the head is fitted on")
    parser.add_argument("--per-label", type=int, default=per_label)
    return parser


def _options() -> argparse.Namespace:
    parser = arguments(__doc__, per_label=100)
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.03, 0.1, 0.3])
    return parser.parse_args()


if __name__ == "__main__":
    main()
