"""Claim: where a run's synthetic rows teach no labels, this says which part of the released model did not learn them.

    python benchmarks/label_signal.py OUT/export/model --test sample:ferry-test [--rows 200]

On real rows that were not trained on, for the released model and the base model: nats per token behind the prompt of
the right label; by how many the other label's prompt is worse, which is what the language model knows of labels; and
the share of rows where the right prompt is the most likely one. For the head: the share of rows that it labels
right, and the share when its scores are cut at their median, which does not count a shift of all of them. At last, what
a classifier without privacy gets from the base model's states, which is what a head could know.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from tables import print_table
from torch import Tensor

from understudy.data.readers import read_source
from understudy.generation.prompts import encode_text
from understudy.methods.conditional_generation.model import TrainedModel
from understudy.methods.conditional_generation.states import text_states
from understudy.methods.conditional_generation.storage import StoredModel, load_trained
from understudy.models.loading import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a released model of conditional generation")
    parser.add_argument("--test", required=True, help="real rows with the columns text and label")
    parser.add_argument("--rows", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored = load_trained(options.model)
    trained = stored.trained
    table = read_source(options.test).slice(0, options.rows)
    texts = [str(text) for text in table["text"].to_pylist()]
    right = torch.tensor([trained.label_names.index(str(label)) for label in table["label"].to_pylist()])
    base = load_model(stored.settings.model).model
    columns = ("nats per token", "other label, above", "right prompt most likely")
    lines = []
    for name, model in (("released", trained.model.lm), ("base", base)):
        found = language_model(model, trained, texts, right)
        lines.append({"model": name, **{column: f"{x:.3f}" for column, x in zip(columns, found, strict=True)}})
    print_table(lines)
    print_table(heads(stored, base, texts, right))


def language_model(model: Any, trained: TrainedModel, texts: list[str], right: Tensor) -> tuple[float, float, float]:
    """Nats per token behind the right prompt, how much worse the best other one is, and how often it is not."""
    losses = torch.stack([_losses(model, trained, text) for text in texts])
    own = losses.gather(1, right[:, None]).squeeze(1)
    others = losses.scatter(1, right[:, None], torch.inf).amin(1)
    return float(own.mean()), float((others - own).mean()), float((losses.argmin(1) == right).double().mean())


@torch.no_grad()
def _losses(model: Any, trained: TrainedModel, text: str) -> Tensor:
    """`(labels,)` mean loss of a text and its end behind each label's prompt; no prompt may be padded."""
    prompts, tokenizer = trained.prompts, trained.tokenizer
    tokens = torch.tensor([*encode_text(tokenizer, text, lead=prompts.lead), tokenizer.eos_token_id])
    rows = torch.cat([prompts.input_ids, tokens.expand(len(prompts.input_ids), -1)], 1)
    mask = torch.cat([prompts.attention_mask, torch.ones_like(rows[:, prompts.width :])], 1)
    said = model(input_ids=rows, attention_mask=mask).logits[:, prompts.width - 1 : -1].float().log_softmax(-1)
    found: Tensor = -said.gather(2, rows[:, prompts.width :, None]).mean((1, 2))
    return found


def heads(stored: StoredModel, base: Any, texts: list[str], right: Tensor) -> list[dict[str, str]]:
    """Lines of the released head and of a classifier of the base model's states, cross-validated."""
    trained, config = stored.trained, stored.settings
    lines = []
    if trained.model.discriminator is not None:
        states = text_states(trained.model.lm, texts, trained=trained, config=config)
        scores = trained.model.label_logits(states[config.discriminator.representation]).log_softmax(-1)
        shifted = scores - scores.median(0).values
        lines.append({"head": "released", "right": _share(scores, right), "cut at the median": _share(shifted, right)})
    plain = text_states(base, texts, trained=trained, config=config)["mean"].double().numpy()
    known = cross_val_score(LogisticRegression(max_iter=2000), plain, right.numpy(), cv=5).mean()
    return [*lines, {"head": "of the base model's states, without privacy", "right": f"{known:.3f}"}]


def _share(scores: Tensor, right: Tensor) -> str:
    return f"{float((scores.argmax(1) == right).double().mean()):.3f}"


if __name__ == "__main__":
    main()
