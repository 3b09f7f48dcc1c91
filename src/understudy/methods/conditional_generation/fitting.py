"""Everything of this method that private rows meet: encoding, the class histogram, DP training.

What goes in is private rows and a charged mechanism interface, what comes out is a function of the mechanisms' outputs
and public values; the record-and-replay proof wraps this one function.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy.generation.prompts import build_prompts
from understudy.methods.conditional_generation.class_sizes import count_labels
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.conditional_generation.encode import encode
from understudy.methods.conditional_generation.memory import check_fits
from understudy.methods.conditional_generation.model import build_model
from understudy.methods.conditional_generation.queries import CLASS_SIZES, QuerySchedule
from understudy.methods.conditional_generation.storage import StoredModel
from understudy.methods.conditional_generation.train import Checkpoints, check_trainable, fit
from understudy.models.loading import LoadedModel, load_base
from understudy.models.shape import shape_of
from understudy.privacy.mechanisms import Mechanisms
from understudy.progress import Progress


def train_on_table(  # noqa: PLR0913 - rows, public settings, and what a resumable task brings along
    texts: Sequence[str | None],
    row_labels: Sequence[int | None],
    *,
    label_names: Sequence[str],
    config: ConditionalGenerationConfig,
    schedule: QuerySchedule,
    mechanisms: Mechanisms,
    base: LoadedModel | None = None,
    checkpoints: Checkpoints | None = None,
    progress: Progress | None = None,
) -> StoredModel:
    """Train on private rows under `schedule`.

    *Guarantee*: (epsilon, delta)-DP as charged, unit example, relation replace_special, n and label list public; at
    epsilon = inf none, and the result is private.

    Args:
        texts: one per slot, private; None is the null row.
        row_labels: index into `label_names` of each row, private.
        label_names: every label, public.
        config: the charged settings.
        schedule: what was charged.
        mechanisms: of the charge.
        base: public base model, changed in place; None loads `config.model`.
        checkpoints: training name -> sink of its state, under the private root.
        progress: called with (steps done, steps in all).
    """
    loaded = base or load_base(config)
    rows = encode(texts, row_labels, label_names=label_names, tokenizer=loaded.tokenizer, config=config)
    counts = None
    if schedule.histogram_sigma is not None:
        exact = count_labels(rows.label, rows.valid, len(label_names))
        released = mechanisms.histogram(exact, sigma=schedule.histogram_sigma, purpose=CLASS_SIZES)
        counts = tuple(int(count) for count in released)
    trained = fit(
        loaded,
        rows,
        label_names=label_names,
        config=config,
        schedule=schedule,
        mechanisms=mechanisms,
        checkpoints=checkpoints,
        progress=progress,
    )
    return StoredModel(trained, config, counts)


def check_model(config: ConditionalGenerationConfig, label_names: Sequence[str]) -> LoadedModel:
    """Load the base model and refuse, before anything is charged, what would fail later.

    Raises:
        InputError: the model is unknown, cannot tell the labels apart, has too short a context, or has a trainable
            layer that cannot give per-example gradients (named), or the machine's memory is too small.
    """
    loaded = load_base(config)
    shape = shape_of(loaded.model.config.to_dict(), parameters=loaded.model.num_parameters())
    prompts = build_prompts(loaded.tokenizer, label_names, config.prompt)
    model = build_model(loaded.model, label_names=label_names, config=config)
    check_trainable(model, config=config, prompts=prompts)
    check_fits(config, shape)
    return loaded
