"""What each phase of a run holds at its peak, predicted from public facts; a run that does not fit is refused.

Nothing here depends on rows, and nothing of a run depends on what is predicted. The counts are of numbers that autograd
keeps, per token and layer, and of tables and targets; what an allocator wastes between them was measured
(benchmarks/matching_memory.py). Encoded rows are left out: 8 bytes for each token that is read of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from understudy.compute import Compute
from understudy.evaluation.config import EvaluationConfig
from understudy.frozen import Profile
from understudy.hardware import chosen
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.gradient_matching.evaluation_config import MatchingEvaluationConfig
from understudy.models import room
from understudy.models.room import FLOAT, weights_bytes, width_of
from understudy.models.shape import ModelShape, model_shape
from understudy.quantities import rounded_up

# Tokens around a text: the first one and the template. Tokens of a prompt, and characters of one in English.
_AROUND: Final = 4
_PROMPT: Final = 20
_CHARACTERS: Final = 5
# What torch loads and sets up with its first operations; with what measures.
_LIBRARIES: Final = 40 << 20
_LIBRARIES_OF_MEASURES: Final = 100 << 20
# Resident over kept bytes: freed pieces lie between kept ones. More lie there where weights are differentiated by, and
# most where each row has a gradient of its own, or many steps are taken.
_WASTE: Final = 1.3
_WASTE_OF_TUNING: Final = 1.6
_WASTE_OF_WEIGHTS: Final = 1.9
# Logits of a row and what the residual is made of them, with a graph and without.
_WITH_GRAPH: Final = 8
_WITHOUT: Final = 6
# What is held of a sum of gradients, in float32 numbers: sums in float64, and their steps in int64.
_RELEASED: Final = 4
# Of a gradient of all layers, numbers per parameter in one text's graph; its activations over a first-order graph's.
_FULL: Final = 3
_SECOND_ORDER: Final = 3
# Copies of the head in a comparison of two of its gradients.
_COMPARED: Final = 7
_CACHES: Final = 2
# Held-out texts that a tuned model reads at once, and the part of what a graph would keep of a layer without one.
_READ: Final = 64
_PASSING: Final = 0.5

# Setting -> the value that takes least memory, in the order in which they are named.
LOWEST: Final = {
    "matching.batch_size": 1,
    "target.micro_batch": 1,
    "length": 1,
    "max_length": 16,
    "projection.k": 1,
    "target.kind": "label_rows",
    "matching.gradient": "closed_form",
}


def check_fits(config: GradientMatchingConfig, label_names: Sequence[str]) -> None:
    """Refuse a run that the machine's memory cannot hold, by its models' files alone.

    Raises:
        InputError: with what to lower.
    """
    room.check_fits(config, lambda one, shape: phases(one, shape, len(label_names)), LOWEST)


def phases(
    config: GradientMatchingConfig, shape: ModelShape, labels: int, *, compute: Compute | None = None
) -> dict[str, int]:
    """Bytes at the peak of each phase, weights included.

    Args:
        config: of the run.
        shape: of the base model.
        labels: how many there are.
        compute: what tasks compute on; None asks the machine.
    """
    compute = compute or chosen()
    # Gradients by a weight are taken of no narrower one than float32.
    differentiated = compute.in_float32 if config.matching.gradient == "full" else compute
    run, weights = _Run(config, shape, labels, width_of(shape, differentiated)), weights_bytes(shape, differentiated)
    found = {
        "the released gradient": weights + run.release,
        "the matching": weights + run.matching,
        "the models fine-tuned to measure": weights_bytes(shape, compute) + tuning_bytes(config, shape),
        "the classifier that measures": classifier_bytes(config.profile),
    }
    if compute.device == "cpu":  # a GPU does not hold what is checked, in float32 on the CPU
        found["the checks before a charge"] = FLOAT * shape.parameters + run.checked
    return found


@dataclass(frozen=True)
class _Run:
    """Predicted bytes above the loaded base model; `width` is that of its numbers."""

    config: GradientMatchingConfig
    shape: ModelShape
    labels: int
    width: int = FLOAT

    @property
    def is_full(self) -> bool:
        return self.config.matching.gradient == "full"

    @property
    def target(self) -> int:
        """Numbers of all labels' targets."""
        if self.is_full:
            return self.labels * self.shape.parameters
        kind = self.config.target.kind
        if kind == "sketch":
            return self.labels * self.config.target.sketch_dimension
        return self.labels * self.shape.hidden * (self.shape.vocabulary if kind == "head" else self.labels)

    @property
    def sketch(self) -> int:
        """Numbers of the sketch's matrices."""
        sketched = not self.is_full and self.config.target.kind == "sketch"
        return self.config.target.sketch_dimension * (self.shape.vocabulary + self.shape.hidden) * sketched

    @property
    def texts(self) -> int:
        """Synthetic texts that are matched at a time."""
        matching = self.config.matching
        return min(
            matching.batch_size, matching.shard_size, rounded_up(self.config.samples * self.config.filter.oversample)
        )

    @property
    def length(self) -> int:
        """Tokens of a synthetic text, at most."""
        return self.config.max_length if self.config.length == "as_in_data" else self.config.length

    @property
    def kept_of_frozen(self) -> int:
        """Numbers that the backward pass of a block with frozen weights reads of a token."""
        one = self.shape
        return 2 * (one.hidden + one.queries + one.keys) + (3 if one.gated else 4) * one.inner

    @property
    def release(self) -> int:
        """Clipped gradients of some rows and their sums."""
        rows, one = self.config.target.micro_batch, self.shape
        tokens = rows * (self.config.max_length + _AROUND)
        if self.is_full:
            sums = _RELEASED // 2 * self.target
            return _LIBRARIES + FLOAT * (sums + max(sums, self._of_weights(tokens) + 2 * one.parameters))
        logits = rows * one.vocabulary * (_WITHOUT + (4 if self.config.target.kind == "head" else 0))
        pass_ = round(_PASSING * tokens * one.kept_per_token) + logits
        return _LIBRARIES + FLOAT * (self.sketch + max(self.sketch, pass_ + _RELEASED * self.target))

    def _of_weights(self, tokens: int) -> int:
        """Numbers of a pass whose gradients are by all weights, for each row its own."""
        one = self.shape
        outputs = 2 * one.hidden + one.queries + 2 * one.keys + (2 if one.gated else 1) * one.inner
        return round(tokens * one.layers * (_WASTE_OF_WEIGHTS * one.kept_per_token + outputs / 2))

    @property
    def matching(self) -> int:
        """A batch of texts with the graph to their embeddings, the embeddings of all tokens, and the target."""
        one, texts = self.shape, self.texts
        tokens = texts * (self.length + _AROUND)
        prompt = _PROMPT + (len(self.config.about) + len(self.config.projection.instruction)) // _CHARACTERS
        held = one.vocabulary * one.hidden + self.sketch + 2 * self.target
        if self.is_full:
            graph = texts * _FULL * one.parameters
            graph += _SECOND_ORDER * tokens * one.layers * one.kept_per_token
        else:
            kept = _WASTE * tokens * one.layers * self.kept_of_frozen * self.width / FLOAT
            graph = round(kept) + _WITH_GRAPH * texts * one.vocabulary
        cache = _CACHES * 2 * texts * one.layers * one.keys * (prompt + self.length) * self.width // FLOAT
        chosen_from = self.config.projection.k * one.hidden if self.config.projection.kind == "top_k" else 0
        projected = cache + texts * (chosen_from + _WITHOUT * one.vocabulary)
        tried = texts * self.length * one.vocabulary * bool(self.config.matching.swap_sweeps)
        return _LIBRARIES + tried + FLOAT * (held + max(graph + cache // _CACHES, projected, self.sketch))

    @property
    def checked(self) -> int:
        """Gradients of two made-up texts, where those of all layers are matched."""
        return _LIBRARIES + self.is_full * FLOAT * (2 * self.target + (2 + _FULL) * self.shape.parameters)


def tuning_bytes(config: GradientMatchingConfig, shape: ModelShape) -> int:
    """Target models that are fine-tuned, one on each kind of rows, beside those that were tuned before."""
    sizes = MatchingEvaluationConfig(profile=config.profile)
    tokens, read = (rows * (min(sizes.max_length, config.max_length) + _AROUND) for rows in (sizes.batch_size, _READ))
    shapes = [
        shape,
        *(found for name in sizes.transfer_models if name != config.model and (found := model_shape(name))),
    ]
    held, peaks = 0, []
    for number, one in enumerate(shapes[: sizes.most_models]):
        upper = one.layers - min(rounded_up(sizes.frozen_share * one.layers), one.layers - 1)
        trained = one.parameters if upper == one.layers else upper * one.layer_parameters
        head = one.vocabulary * one.hidden
        graph = (
            round(_WASTE_OF_TUNING * tokens * upper * one.kept_per_token)
            + _WITH_GRAPH * sizes.batch_size * one.vocabulary
        )
        # Gradients come as the graph goes; neither they nor Adam's moments stay with a model that was tuned.
        step = one.parameters + 2 * trained + max(graph, trained + 2 * head * (upper == one.layers))
        # The run's own model is compared on the way, and kept untuned beside the others.
        compared = one.parameters + 2 * trained + _COMPARED * head * (number == 0)
        peaks += [held + 2 * one.parameters + step, held + compared]
        held = 3 * one.parameters + shape.parameters
        peaks += [held + round(_PASSING * read * one.kept_per_token) + _READ * one.vocabulary]
    return _LIBRARIES_OF_MEASURES + FLOAT * max(peaks)


def classifier_bytes(profile: Profile) -> int:
    """The transformer that is fine-tuned on each kind of rows to measure them; nothing where none is."""
    sizes = EvaluationConfig(profile=profile)
    one = model_shape(sizes.classifier.base) if sizes.headline == "transformer" else None
    if one is None:
        return 0
    tokens = sizes.classifier.batch_size * sizes.classifier.max_length
    graph = round(_WASTE_OF_WEIGHTS * tokens * one.layers * one.kept_per_token)
    return _LIBRARIES + FLOAT * (4 * one.parameters + graph)
