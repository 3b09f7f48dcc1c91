"""What a training and a generation hold, predicted from public facts, and the batch sizes that follow from it.

Nothing here depends on rows, on how many of them were drawn, or on what memory is free at the moment. A micro-batch
that is given is part of the charge; `auto` is charged as `auto`, and stands for one number on every processor and for
more rows on a GPU, to whose kind a charge is bound. Whether layers are computed twice changes no number, and the
generation batch none on a CPU: both follow the machine's memory. A GPU may round differently with another batch, which
follows the memory in whole GiB there, as the kind of a GPU does.

The counts are of float32 numbers that autograd keeps, per token and layer; what an allocator wastes between them was
measured (benchmarks/memory.py).
"""

from __future__ import annotations

from typing import Final

from understudy.errors import InputError
from understudy.generation.rows import doubled
from understudy.hardware import device_memory
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.models.passes import rows_on_a_gpu
from understudy.models.shape import ModelShape, model_shape
from understudy.privacy.dpsgd.chunks import LOGITS_AT_ONCE, ROWS_IN_FLOATS
from understudy.settings import DeviceType, settings

# More tokens in one pass are not faster on a CPU, and more memory than this buys nothing either.
_TOKENS: Final = 1024
_AMPLE: Final = 5 << 29
_MOST_GENERATED: Final = 128
# Resident over kept bytes: freed pieces lie between kept ones, fewer where an adapter is one operation. On CUDA what is
# allocated is what is kept.
_WASTE: Final = 1.9
_WASTE_WITH_ADAPTERS: Final = 1.4
_WASTE_ON_CUDA: Final = 1.0
_FLOAT: Final = 4
# Caches that a generation holds at a time, and more of them in the layers whose cache is shifted, once or several times
# for a token. Of prompts of 300 tokens 1.8 were measured; with all layers 3.8, and with three steps 4.9, 6.0 ahead.
_CACHES: Final = 2
_SHIFTED: Final = 2
_SHIFTED_AGAIN: Final = 5
# What a process holds once it has compiled the loops that draw noise for so many numbers, which it does where that many
# are trained (`rounded_gaussian.COMPILED_FROM`).
_COMPILER: Final = 134 << 20
_COMPILED_FROM: Final = 1 << 21
# Tokens of a prompt without the words of `about`, plain and through a chat template, and characters of a token in
# English: the tokenizer is not read for this.
_PROMPT: Final = 6
_CHAT_PROMPT: Final = 20
_CHARACTERS: Final = 5
_TOPIC_WORD: Final = 2  # tokens of a word of a topic, its comma included


def resolve(config: ConditionalGenerationConfig) -> ConditionalGenerationConfig:
    """The settings with a number of rows to generate at a time, from the model's files and public settings alone."""
    if config.generate.batch_size != "auto":
        return config
    return resolve_for(config, model_shape(config.model))


def resolve_for(config: ConditionalGenerationConfig, shape: ModelShape | None) -> ConditionalGenerationConfig:
    """`resolve` for a model whose shape is known; without one, memory is not looked at."""
    drawn = rows_at_a_time(config, shape)
    return config.model_copy(update={"generate": config.generate.model_copy(update={"batch_size": drawn})})


def padded_length(config: ConditionalGenerationConfig, shape: ModelShape | None) -> int:
    """Tokens of prompt, text and EOS, about."""
    return _prompt_length(config, shape) + config.train.max_length


def _prompt_length(config: ConditionalGenerationConfig, shape: ModelShape | None) -> int:
    in_chat = config.prompt.in_chat(has_template=shape is not None and shape.chat)
    own = (_CHAT_PROMPT if in_chat else _PROMPT) + len(config.about) // _CHARACTERS
    return own + (1 + _TOPIC_WORD * config.topics.most_words if config.topics.active else 0)


def rows_per_pass(config: ConditionalGenerationConfig, n: int, shape: ModelShape | None, *, device: str = "cpu") -> int:
    """The micro-batch: as given, or a power of two.

    The last micro-batch of a step is filled up with rows that do not count, half of it on average: on a CPU they stay
    under a tenth of an expected step.

    Args:
        config: names it, or says `auto`.
        n: slots, public.
        shape: of the base model.
        device: type that computes.
    """
    train = config.train
    if train.micro_batch != "auto":
        return train.micro_batch
    expected, rows = min(train.batch_size, n), 1
    while (
        2 * rows * padded_length(config, shape) <= _TOKENS
        and (2 * rows - 1) / 2 < expected / 10
        and (shape is None or _has_room(config, shape, 2 * rows))
    ):
        rows *= 2
    if device != "cuda" or shape is None:
        return rows
    length = padded_length(config, shape)
    return rows_on_a_gpu(
        rows, expected=expected, tokens=length, taken=lambda more: training_bytes(config, shape, more, device="cuda")
    )


def _has_room(config: ConditionalGenerationConfig, shape: ModelShape, rows: int) -> bool:
    """Whether a pass of so many rows takes no more, beside what any pass takes, than is worth having.

    The size of a machine's memory has no say: all machines of one kind of processor give the same last bits, so a run
    may go on on any of them. `check_fits` refuses where it is too large.
    """
    return training_bytes(config, shape, rows) - training_bytes(config, shape, 0) <= _AMPLE


def rows_at_a_time(config: ConditionalGenerationConfig, shape: ModelShape | None) -> int:
    """The generation batch: as given, or a power of two; more on a GPU, which mostly starts operations."""
    if config.generate.batch_size != "auto":
        return config.generate.batch_size
    rows = _MOST_GENERATED
    if shape is not None and settings().device_type == "cuda":
        return doubled(1, bytes_of_a_row=generation_bytes(config, shape, 1))
    while shape is not None and rows > 1 and generation_bytes(config, shape, rows) > min(_AMPLE, device_memory() // 2):
        rows //= 2
    return rows


def training_bytes(
    config: ConditionalGenerationConfig,
    shape: ModelShape,
    rows: int,
    *,
    recompute: bool = False,
    device: DeviceType = "cpu",
) -> int:
    """Predicted peak of the training above the loaded model, in the memory of the device.

    Args:
        config: length, variant and what is trained.
        shape: of the base model.
        rows: per forward pass.
        recompute: whether layers keep nothing but their inputs.
        device: that computes.
    """
    passes = 2 if config.variant == "multitask" and config.update == "joint" else 1
    tokens, trained = rows * padded_length(config, shape), _trained(config, shape)
    kept = passes * tokens * shape.layers * shape.kept_per_token
    if recompute:
        kept = passes * tokens * shape.hidden * shape.layers + tokens * shape.kept_per_token
    # Per-example gradients of adapters are whole; those of weights stay factors, the output gradients among them, which
    # grow while the graph shrinks.
    per_example = rows * trained if config.lora.rank > 0 else passes * tokens * shape.layers * _outputs(shape) / 2
    chunk = 2 * min(LOGITS_AT_ONCE, tokens * shape.vocabulary)
    # Adam's two moments and perhaps the average; sums in float64 or int64 steps; the noised sum. The graph is gone when
    # the noise is drawn.
    state, summed, noised = (3 if config.train.averaging else 2) * trained, 2 * trained, trained
    # What comes of more rows than floats may add up is in float64, beside the sum that it is added to.
    of_pass = trained if rows > ROWS_IN_FLOATS else 0
    copied = shape.parameters if config.variant == "naive_filter" else 0
    waste = _WASTE_WITH_ADAPTERS if config.lora.rank > 0 else _WASTE
    in_pass = (waste if device == "cpu" else _WASTE_ON_CUDA) * kept + per_example + chunk + summed + of_pass
    compiler = _COMPILER if device == "cpu" and trained >= _COMPILED_FROM else 0
    return compiler + round(_FLOAT * (copied + state + max(in_pass, summed + 2 * noised)))


def generation_bytes(config: ConditionalGenerationConfig, shape: ModelShape, rows: int) -> int:
    """Predicted peak of a generation above the loaded model: caches, their shifts when steered, and logits."""
    sampling, steering = config.generate.sampling, config.generate.steering
    cache = 2 * shape.layers * shape.keys * (_prompt_length(config, shape) + sampling.max_new_tokens)
    copies: float = _CACHES
    if config.steers and steering.steer == "key_value":
        copies += (_SHIFTED if steering.steps == 1 else _SHIFTED_AGAIN) * steering.layers
    return round(_FLOAT * rows * (copies * cache + 16 * shape.vocabulary))


def recomputes(config: ConditionalGenerationConfig, shape: ModelShape, rows: int) -> bool:
    """Whether layers are computed twice instead of kept: only where a run would not fit otherwise.

    It runs each layer forward twice and changes no number.
    """
    return training_bytes(config, shape, rows, device=settings().device_type) > device_memory() // 2


def check_fits(config: ConditionalGenerationConfig, shape: ModelShape | None) -> None:
    """Refuse a training that the machine's memory cannot hold.

    Raises:
        InputError: with what to lower.
    """
    if shape is None:
        return
    device, limit = settings().device_type, device_memory()
    # A step of all rows expects fewer where there are fewer rows, and then a pass may have fewer.
    rows = rows_per_pass(config, config.train.batch_size, shape, device=device)
    recompute = recomputes(config, shape, rows)
    expected = training_bytes(config, shape, rows, recompute=recompute, device=device)
    expected += _FLOAT * shape.parameters
    if expected > limit:
        ways = [f"train.micro_batch={rows}"] if rows > 1 else []
        ways += [f"train.max_length={config.train.max_length}"]
        ways += [] if config.lora.rank else ["lora.rank=0, which trains every weight, to 8,"]
        raise InputError(
            f"model={config.model!r} is expected to need {expected / 2**30:.1f} GiB for training, this machine allows "
            f"{limit / 2**30:.1f}: lower {' or '.join(ways)} or choose a smaller model"
        )


def _trained(config: ConditionalGenerationConfig, shape: ModelShape) -> int:
    frozen = min(config.train.frozen_layers, shape.layers)
    if config.lora.rank == 0:
        return shape.parameters - frozen * shape.layer_parameters
    return shape.adapter_parameters(config.lora.rank) * (shape.layers - frozen) // shape.layers


def _outputs(shape: ModelShape) -> int:
    return 2 * shape.hidden + shape.queries + 2 * shape.keys + (2 if shape.gated else 1) * shape.inner
