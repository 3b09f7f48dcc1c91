"""Draw synthetic rows from a trained model (paper, section 5.2): batched, steered, filtered. Post-processing.

Deviations: of several texts drawn for a row, the one nearest to its label's mean is kept (`class_means`), and prompts
may name public topics (`topic_counts`).

Each row has its own public random stream, named by its row number and how often it was drawn; batch size, order and
when a row takes the place of an ended one change nothing but the last bits of float arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch

from understudy.errors import InputError
from understudy.evaluation.texts import encoder
from understudy.generation.prompts import row_seeds, special_token_ids
from understudy.generation.sampling import sample
from understudy.generation.steering import steer_towards
from understudy.methods.conditional_generation.class_means import ClassMeans, check_encoder, margins, nearest
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.filter import keep_reasons
from understudy.methods.conditional_generation.memory import rows_at_a_time
from understudy.methods.conditional_generation.model import TrainedModel
from understudy.methods.conditional_generation.topic_counts import topic_sizes
from understudy.models.shape import shape_of
from understudy.progress import Progress
from understudy.quantities import rounded_up

_ROWS = 4096  # rows whose uniform numbers and label means are held at once; `batch_size` of them grow at a time


@dataclass(frozen=True)
class Synthesis:
    """Synthetic rows and what was dropped on the way.

    Attributes:
        table: Columns `text` (string) and `label` (int32), in the order of the labels.
        drawn: Texts drawn per label name, dropped ones included.
        dropped: Label name -> reason (`empty`, `low_probability`, `outranked`) -> texts dropped.
        shortfall: Label name -> rows wanted but not reached; only where above 0.
    """

    table: pa.Table = field(repr=False)
    drawn: Mapping[str, int] = field(repr=False)
    dropped: Mapping[str, Mapping[str, int]] = field(repr=False)
    shortfall: Mapping[str, int] = field(default_factory=dict, repr=False)

    def report(self) -> dict[str, Any]:
        """The counts as plain JSON values."""
        dropped = {name: dict(reasons) for name, reasons in self.dropped.items()}
        return {"drawn": dict(self.drawn), "dropped": dropped, "shortfall": dict(self.shortfall)}


def generate(
    trained: TrainedModel,
    labels: Sequence[int],
    *,
    config: ConditionalGenerationConfig,
    first_row: int = 0,
    topics: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Draw one text per wanted label; a text is empty only if every redraw was.

    Args:
        trained: The model, released or not.
        labels: Label index of each row.
        config: Sampling and steering.
        first_row: Number of the first row: rows of different numbers are independent draws.
        topics: Topic of each row; None for the first one.
        progress: Called with (rows done, rows in all).

    Returns:
        One text per label, stripped, in the given order.
    """
    lm: Any = trained.model.lm
    size = rows_at_a_time(config, shape_of(lm.config.to_dict(), parameters=lm.num_parameters()))
    texts = [""] * len(labels)
    about = list(topics or [0] * len(labels))
    waiting = list(range(len(labels)))
    for attempt in range(config.generate.redraws + 1):
        for start in range(0, len(waiting), _ROWS):
            some = waiting[start : start + _ROWS]
            seeds = row_seeds(config.public_seed, [first_row + i for i in some], purpose=f"text/{attempt}")
            report = _every_batch(progress, start, len(labels), size=size) if not attempt else None
            wanted = [(labels[i], about[i]) for i in some]
            drawn = _draw(trained, wanted, seeds, config=config, size=size, progress=report)
            for i, text in zip(some, drawn, strict=True):
                texts[i] = text
        waiting = [i for i in waiting if not texts[i]]
    return texts


def _every_batch(progress: Progress | None, before: int, total: int, *, size: int) -> Progress | None:
    """Progress of some rows as part of all of them, told after every `size` rows or so and at the end."""
    if progress is None:
        return None
    told = 0

    def report(done: int, count: int) -> None:
        nonlocal told
        if done == count or done >= told + size:
            told = done
            progress(before + done, total)

    return report


def _draw(
    trained: TrainedModel,
    wanted: Sequence[tuple[int, int]],
    seeds: Sequence[int],
    *,
    config: ConditionalGenerationConfig,
    size: int,
    progress: Progress | None,
) -> list[str]:
    model = trained.model
    device = next(model.parameters()).device
    targets, topics = torch.tensor(wanted, device=device).T
    hook = None
    if config.steers and model.discriminator is not None:
        hook = steer_towards(
            targets,
            config=config.generate.steering,
            attribute=model.discriminator,
            representation=config.discriminator.representation,
        )
    prompts = trained.prompts
    places = targets * prompts.topics + topics
    rows = sample(
        model.lm,
        (prompts.input_ids.to(device)[places], prompts.attention_mask.to(device)[places]),
        config=config.generate.sampling,
        seeds=seeds,
        eos=prompts.end,
        forbidden=special_token_ids(trained.tokenizer),
        step_hook=hook,
        batch_size=size,
        progress=progress,
    )
    decode = trained.tokenizer.decode
    return [decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False).strip() for row in rows]


def synthesize(
    trained: TrainedModel,
    sizes: Mapping[str, int],
    *,
    config: ConditionalGenerationConfig,
    means: ClassMeans | None = None,
    topic_counts: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Synthesis:
    """Draw and filter until every label has the wanted number of rows, or the draws are used up; then select.

    With topics, each of a label's has rows, draws and a selection of its own.

    Args:
        trained: The model.
        sizes: Label name -> rows wanted; public or released.
        config: Sampling, steering, filter, selection and the bound on draws.
        means: What rows are selected by; None keeps as many texts as are wanted and selects nothing.
        topic_counts: The noised histogram by which a label's rows are shared out to topics; None for equal shares.
        progress: Called with (rows drawn, rows wanted).

    Raises:
        InputError: A label is unknown, or the means lie in the space of another encoder than the installed one.
    """
    unknown = sorted(set(sizes) - set(trained.label_names))
    if unknown:
        raise InputError(f"class sizes name {unknown}: expected labels among {list(trained.label_names)}")
    names, topics = trained.label_names, trained.prompts.topics
    rows = topic_sizes(sizes, names, topic_counts, topics=topics)
    wanted = [count * (config.selection.draws if means is not None else 1) for count in rows]
    left = [rounded_up(count * config.filter.max_draws) for count in wanted]
    kept: list[list[str]] = [[] for _ in wanted]
    drawn: Counter[int] = Counter()
    dropped: list[Counter[str]] = [Counter() for _ in wanted]
    row = 0
    while cells := _next_round(wanted, left, kept, drawn):
        labels, about = [cell // topics for cell in cells], [cell % topics for cell in cells]
        texts = generate(trained, labels, config=config, first_row=row, topics=about, progress=progress)
        row += len(labels)
        reasons = keep_reasons(trained, texts, labels, config=config)
        for text, cell, reason in zip(texts, cells, reasons, strict=True):
            left[cell] -= 1
            drawn[cell] += 1
            if reason is not None:
                dropped[cell][reason] += 1
            elif len(kept[cell]) < wanted[cell]:
                kept[cell].append(text)
    if means is not None and config.selects:
        kept = _select(trained, kept, means, rows=rows, dropped=dropped)
    return _collect(names, rows, kept, drawn, dropped)


def _select(
    trained: TrainedModel,
    kept: Sequence[Sequence[str]],
    means: ClassMeans,
    *,
    rows: Sequence[int],
    dropped: Sequence[Counter[str]],
) -> list[list[str]]:
    """So many texts of each label and topic, those nearest to the label's mean; the others count as outranked."""
    sentences = encoder.load_encoder(device=str(next(trained.model.parameters()).device))
    check_encoder(means, sentences)
    chosen: list[list[str]] = []
    for cell, (texts, most) in enumerate(zip(kept, rows, strict=True)):
        label = cell // trained.prompts.topics
        places = list(range(len(texts)))
        if len(texts) > most:
            margin = margins(means, encoder.embed(texts, sentences), [label] * len(texts))
            places = nearest(texts, margin.tolist(), most=most)
            dropped[cell]["outranked"] += len(texts) - most
        chosen.append([texts[place] for place in places])
    return chosen


def _next_round(
    wanted: Sequence[int], left: Sequence[int], kept: Sequence[Sequence[str]], drawn: Mapping[int, int]
) -> list[int]:
    """Cells, of a label and a topic, of the next draws: what each still lacks over its share of kept texts so far."""
    cells: list[int] = []
    for cell, texts in enumerate(kept):
        missing = wanted[cell] - len(texts)
        tried = drawn.get(cell, 0)
        share = max(len(texts), 1) / tried if tried else 1.0
        cells += [cell] * min(left[cell], rounded_up(missing / share))
    return cells


def _collect(
    names: Sequence[str],
    wanted: Sequence[int],
    kept: Sequence[Sequence[str]],
    drawn: Mapping[int, int],
    dropped: Sequence[Mapping[str, int]],
) -> Synthesis:
    topics = len(wanted) // len(names)
    texts = [text for part in kept for text in part]
    labels = [cell // topics for cell, part in enumerate(kept) for _ in part]
    missing, tried = Counter[str](), Counter[str]()
    lost: dict[str, Counter[str]] = {name: Counter() for name in names}
    for cell, (count, part, reasons) in enumerate(zip(wanted, kept, dropped, strict=True)):
        name = names[cell // topics]
        missing[name] += count - len(part)
        tried[name] += drawn.get(cell, 0)
        lost[name].update(reasons)
    return Synthesis(
        table=pa.table({"text": pa.array(texts, pa.string()), "label": pa.array(labels, pa.int32())}),
        drawn=dict(tried),
        dropped={name: dict(reasons) for name, reasons in lost.items() if reasons},
        shortfall={name: count for name, count in missing.items() if count > 0},
    )
