"""Every figure of a cell's rows.

Accuracies, losses against the exact gradient and the reports of seed 0 read real rows: internal, and nothing chooses
by them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from cells import write
from gradient_matching_data import (
    Cell,
    Settings,
    configure,
    dataset_of,
    embeddings,
    read,
    space_of,
    subset,
    taken,
    transfer_config,
    words_of,
)
from simulation import model_of
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility.accuracy import Predictions, score
from understudy.evaluation.utility.label_model import LabelModel, encode_rows, padded
from understudy.evaluation.utility.transfer import WordsOf, fine_tune, load_label_model
from understudy.methods.gradient_matching.evaluation import losses_of
from understudy.methods.gradient_matching.release import Target
from understudy.models.upper_layers import entering_states, last_state

_AUDITED = 320  # rows per side of the membership attack: 200 steps of 16 see each ten times
_ERROR_ROWS = 200  # real rows whose gradient is compared along fine-tuning
_CHUNK = 64


def losses(target: Target, rows: LabelledTexts) -> np.ndarray[Any, np.dtype[np.float64]]:
    """1 - cosine of each string's gradient, tokenised again, and its label's target."""
    config, names = target.settings, rows.label_names
    base = model_of(config.model)
    space = space_of(config, dataset_of(names), seed=config.public_seed)
    verbalizer = words_of(dataset_of(names), config.verbalizer)(base.tokenizer)
    return losses_of(rows, target, base=base, space=space, verbalizer=verbalizer)


def tune(settings: Settings, cell: Cell, model: str, rows: LabelledTexts | None) -> LabelModel:
    """The target model after its last step; as it is shipped without rows."""
    config, words = transfer_config(model), cell_words(settings, cell)
    if rows is None:
        return load_label_model(label_words=words, config=config)
    return fine_tune(rows, label_words=words, config=config, seed=cell.seed)


def cell_words(settings: Settings, cell: Cell) -> WordsOf:
    """The words of a cell's run, in the tokenizer of whatever model is fine-tuned."""
    return words_of(cell.dataset, configure(settings, cell).verbalizer)


def verdicts(settings: Settings, cell: Cell, model: str, tuned: LabelModel) -> Predictions:
    """`label_model.predict` of the test rows, the frozen layers' part of it computed once per model and process."""
    count = transfer_config(model).frozen_lower_layers
    sequences, entering = entering_test(settings, cell.dataset, model, cell.seed if settings.about else 0)
    head, tokens = tuned.model.get_output_embeddings(), tuned.words.token_ids
    order, found = by_length(sequences), []
    with torch.no_grad():
        for part in order.split(_CHUNK):
            rows = part.tolist()
            ids, mask = padded(tuned, [sequences[row] for row in rows])
            states = pad_sequence([entering[row] for row in rows], batch_first=True)
            last = last_state(tuned.model, count, input_ids=ids, attention_mask=mask, states=states)
            found.append(head(last)[:, tokens].argmax(-1))
    predicted = torch.cat(found)[order.argsort()].numpy()
    return score(predicted, read(settings.data, cell.dataset, "test").labels)


@lru_cache(maxsize=4)
def entering_test(settings: Settings, dataset: str, model: str, seed: int) -> tuple[list[list[int]], list[Tensor]]:
    """Encoded test rows and the states that enter the first trained layer, one `(length, d)` each."""
    config = transfer_config(model)
    words = cell_words(settings, Cell(dataset, "test", None, seed=seed))
    target = load_label_model(label_words=words, config=config)
    sequences = encode_rows(target, read(settings.data, dataset, "test").texts)
    order, found = by_length(sequences), []
    for part in order.split(_CHUNK):
        rows = [sequences[row] for row in part.tolist()]
        ids, mask = padded(target, rows)
        states = entering_states(target.model, config.frozen_lower_layers, input_ids=ids, attention_mask=mask)
        found += [state[: len(row)].clone() for state, row in zip(states, rows, strict=True)]
    return sequences, [found[place] for place in order.argsort().tolist()]


def by_length(sequences: list[list[int]]) -> Tensor:
    """Row numbers, the shortest first."""
    return torch.tensor(sorted(range(len(sequences)), key=lambda row: len(sequences[row])), dtype=torch.long)


def full_reports(settings: Settings, cell: Cell, rows: LabelledTexts, tuned: LabelModel) -> dict[str, Any]:
    """What the paper's figures show: likelihood, distances to real rows, membership, gradient error; internal."""
    from understudy.evaluation.texts.encoder import embed, load_encoder
    from understudy.evaluation.texts.fidelity import FRECHET, compare
    from understudy.evaluation.texts.nearest import log_perplexities, nearest_real

    mine = embed(list(rows.texts), load_encoder())
    real, holdout = (embeddings(settings, cell.dataset, split) for split in ("train", "test"))
    frechet = compare(FRECHET, {"": mine}, real, seed=0, splits=4)
    nearest = nearest_real(mine, real[taken(settings, cell)] if cell.real != 0 else real, holdout)
    return {
        "log_perplexity": log_perplexities(model_of(settings.models[0]), {"rows": list(rows.texts)})["rows"],
        "frechet": [frechet.sets[""].value, frechet.reference.value],
        "nearest_median": list(nearest.median),
        "nearest_closest": list(nearest.closest),
        "closer_than_holdout": nearest.closer_than_holdout(),
        "nearest_counts": [nearest.edges.tolist(), nearest.synthetic_counts.tolist(), nearest.holdout_counts.tolist()],
        "membership": membership(settings, cell, tuned),
        "gradient_error": gradient_errors(settings, cell, rows),
    }


def membership(settings: Settings, cell: Cell, tuned: LabelModel) -> dict[str, Any] | None:
    """The loss attack on the tuned model and on one tuned on the members; None where too few rows were read."""
    from understudy.auditing.membership import loss_attack, membership_scores

    if cell.real is not None and cell.real < 20:
        return None
    members, others = audited(settings, cell)
    control_path = settings.cache / f"{cell.dataset}-control-{cell.real or 'all'}-seed-{cell.seed}.json"
    if not control_path.exists():
        control = loss_attack(membership_scores(tune(cell, settings.models[0], members), members, others), seed=0)
        write(control_path, {"advantage": interval(control.advantage), "auc": interval(control.auc)})
    attack = loss_attack(membership_scores(tuned, members, others), seed=0)
    return {
        "advantage": interval(attack.advantage),
        "auc": interval(attack.auc),
        "control": json.loads(control_path.read_text()),
        "members": len(members.texts),
        "others": len(others.texts),
    }


def audited(settings: Settings, cell: Cell) -> tuple[LabelledTexts, LabelledTexts]:
    """Members, some of the rows that the condition read, and test rows, which nothing read."""
    generator = np.random.default_rng([cell.seed, 1])
    train, test = (read(settings.data, cell.dataset, split) for split in ("train", "test"))
    members = generator.permutation(taken(settings, cell) if cell.real != 0 else len(train.texts))[:_AUDITED]
    return subset(train, members), subset(test, generator.permutation(len(test.texts))[:_AUDITED])


def gradient_errors(settings: Settings, cell: Cell, rows: LabelledTexts) -> list[list[float]]:
    """[steps, relative distance of the head's gradient from that of real rows] along one more fine-tuning."""
    from understudy.methods.gradient_matching.gradients import record_errors

    train = read(settings.data, cell.dataset, "train")
    chosen = np.random.default_rng([cell.seed, 2]).permutation(len(train.texts))[:_ERROR_ROWS]
    callback, found = record_errors(rows, subset(train, chosen))
    config, words = transfer_config(settings.models[0]), cell_words(settings, cell)
    fine_tune(rows, label_words=words, config=config, seed=cell.seed, callback=callback)
    return [[step, error.last_layer] for step, error in found]


def interval(found: Any) -> list[float]:
    """Value, lower and upper limit."""
    return [found.value, found.low, found.high]
