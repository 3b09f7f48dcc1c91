"""Text by prompting the same language model: the baselines that train nothing.

Paper: GRADMM, section 5.1 and appendix B.1 (Figures 4 and 5), after Li et al. 2023. Usable beside
any method.
*Deviations*: the paper prompts an instruction-tuned model with a paragraph per data set; here the instruction is the
caller's and public. In the few-shot prompt every example stands as the
instruction for its own label followed by its text, which a base model continues without being told to; the paper puts
the examples between context and instruction and asks not to reword them. Each text draws its own examples, all of the
wanted label. A text ends at its first line break.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from understudy.errors import InputError
from understudy.evaluation.rows import LabelledTexts
from understudy.evaluation.utility.classifier import check_labels
from understudy.generation.config import SamplingConfig
from understudy.generation.prompts import (
    Instruction,
    PromptFormat,
    encode_text,
    end_token,
    instruction_ids,
    padded_left,
    row_seeds,
    special_ids,
    special_token_ids,
    uses_chat,
)
from understudy.generation.rows import rows_in_flight
from understudy.generation.sampling import sample
from understudy.models.loading import LoadedModel
from understudy.progress import Progress

Row = tuple[int, int]  # label index, number of the text among those of its label

_BATCH = 32
_REDRAWS = 3
_BETWEEN = "\n\n"


def zero_shot(
    loaded: LoadedModel,
    label_names: Sequence[str],
    rows: int,
    *,
    instruction: Instruction,
    sampling: SamplingConfig,
    public_seed: int,
    progress: Progress | None = None,
) -> pa.Table:
    """Texts from the instruction alone; public, if the model and the instruction are.

    Args:
        loaded: language model.
        label_names: every label, public.
        rows: texts in all, shared out equally; the first labels get what is left over.
        instruction: how the model is asked.
        sampling: how tokens are drawn.
        public_seed: a text is a function of it, its label and its number, whatever is drawn beside it.
        progress: called with (texts drawn, texts).

    Returns:
        Columns `text` (string; one line, stripped, empty only if every redraw was) and `label` (int32), label by
        label.

    Raises:
        InputError: instruction and text do not fit the model's context.
    """
    asked = _instructions(loaded, label_names, instruction)
    _check(loaded, asked, shots=0, sampling=sampling)
    wanted = _share_out(rows, len(label_names))
    prompts = [asked[label] for label, _ in wanted]
    end = _end(loaded, instruction)
    return _write(loaded, wanted, prompts, end=end, sampling=sampling, public_seed=public_seed, progress=progress)


def few_shot(
    loaded: LoadedModel,
    exemplars: LabelledTexts,
    rows: int,
    *,
    instruction: Instruction,
    sampling: SamplingConfig,
    public_seed: int,
    shots: int = 4,
    progress: Progress | None = None,
) -> pa.Table:
    """Texts after examples of their label.

    **The output is as private as the exemplars**: with real rows in the prompt a text may repeat them word for word,
    and no mechanism stands in between. Label it `private`; it is only ever compared with.

    Args:
        loaded: language model.
        exemplars: examples with their labels, and every label's name; each is cut to `sampling.max_new_tokens`.
        rows: as `zero_shot`.
        instruction: how the model is asked.
        sampling: how tokens are drawn.
        public_seed: as `zero_shot`, for the choice of examples too.
        shots: examples per prompt, at least 1; all of a label's where it has fewer, the bare instruction where none.
        progress: called with (texts drawn, texts).

    Returns:
        As `zero_shot`.

    Raises:
        InputError: an example's label is out of range, or so many examples of the greatest length do not fit the
            model's context, whatever their own lengths.
    """
    if shots < 1:
        raise InputError(f"shots={shots}: expected at least 1; use zero_shot for none")
    names = exemplars.label_names
    asked = _instructions(loaded, names, instruction)
    _check(loaded, asked, shots=shots, sampling=sampling)
    shown: list[list[list[int]]] = [[] for _ in names]
    labels = check_labels(exemplars.texts, exemplars.labels, classes=len(names)) if exemplars.texts else ()
    for text, label in zip(exemplars.texts, labels, strict=True):
        answer = encode_text(loaded.tokenizer, " ".join(text.split()))[: sampling.max_new_tokens]
        shown[label].append([*_behind_bos(loaded, asked[label]), *answer, *_encode(loaded, _BETWEEN)])
    wanted = _share_out(rows, len(names))
    prompts = []
    for label, number in wanted:
        seed = row_seeds(public_seed, [number], purpose=f"few-shot/{names[label]}")[0]
        chosen = np.random.default_rng(seed).permutation(len(shown[label]))[:shots]
        examples = [token for example in chosen for token in shown[label][example]]
        own = asked[label]
        bos = own[: len(own) - len(_behind_bos(loaded, own))]
        prompts.append([*bos, *examples, *_behind_bos(loaded, own)])
    end = _end(loaded, instruction)
    return _write(loaded, wanted, prompts, end=end, sampling=sampling, public_seed=public_seed, progress=progress)


def _end(loaded: LoadedModel, instruction: Instruction) -> int:
    """What ends a text behind the instruction, which is a chat unless it is given as a text."""
    return end_token(loaded.tokenizer, in_chat=not instruction.text and uses_chat(loaded.tokenizer, PromptFormat()))


def _share_out(rows: int, labels: int) -> list[Row]:
    if rows < 0:
        raise InputError(f"rows={rows}: expected 0 or more")
    return [(label, number) for label in range(labels) for number in range(rows // labels + (label < rows % labels))]


def _write(
    loaded: LoadedModel,
    wanted: Sequence[Row],
    prompts: Sequence[list[int]],
    *,
    end: int,
    sampling: SamplingConfig,
    public_seed: int,
    progress: Progress | None,
) -> pa.Table:
    """Continue each prompt by one line, again where the line is empty."""
    texts, longest = [""] * len(prompts), max(map(len, prompts), default=1)
    together = rows_in_flight(loaded.model, "auto", on_cpu=_BATCH, prompt=longest, new=sampling.max_new_tokens)
    for attempt in range(_REDRAWS + 1):
        waiting = [row for row, text in enumerate(texts) if not text]
        for start in range(0, len(waiting), together):
            batch = waiting[start : start + together]
            drawn = sample(
                loaded.model,
                _padded(loaded, [prompts[row] for row in batch]),
                config=sampling,
                seeds=[
                    row_seeds(public_seed, [number], purpose=f"prompting/{label}/{attempt}")[0]
                    for label, number in (wanted[row] for row in batch)
                ],
                eos=end,
                forbidden=special_token_ids(loaded.tokenizer),
            )
            for row, tokens in zip(batch, drawn, strict=True):
                texts[row] = _first_line(loaded, tokens)
            if progress is not None and attempt == 0:
                progress(start + len(batch), len(prompts))
    labels = [label for label, _ in wanted]
    return pa.table({"text": pa.array(texts, pa.string()), "label": pa.array(labels, pa.int32())})


def _first_line(loaded: LoadedModel, tokens: list[int]) -> str:
    text = loaded.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return next(iter(text.strip().splitlines()), "").strip()


def _padded(loaded: LoadedModel, prompts: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of prompts, padded on the left, both (rows, longest) int64."""
    device = next(loaded.model.parameters()).device
    return padded_left(prompts, pad=special_ids(loaded.tokenizer)[2], device=device)


def _instructions(loaded: LoadedModel, names: Sequence[str], instruction: Instruction) -> list[list[int]]:
    """The prompt of each label, BOS included."""
    return [instruction_ids(loaded.tokenizer, name, instruction) for name in names]


def _behind_bos(loaded: LoadedModel, prompt: list[int]) -> list[int]:
    return prompt[1:] if prompt[0] == special_ids(loaded.tokenizer)[0] else prompt


def _encode(loaded: LoadedModel, text: str) -> list[int]:
    tokenizer: Any = loaded.tokenizer
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def _check(loaded: LoadedModel, asked: Sequence[list[int]], *, shots: int, sampling: SamplingConfig) -> None:
    """Refuse by public numbers only: an example's own length is none."""
    widest = max(map(len, asked))
    example = widest + sampling.max_new_tokens + len(_encode(loaded, _BETWEEN))
    longest = 1 + shots * example + widest + sampling.max_new_tokens
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    if context is not None and longest > context:
        raise InputError(
            f"shots={shots}, max_new_tokens={sampling.max_new_tokens}: prompt and text take up to {longest} tokens, "
            f"the model's context holds {context}; lower one of them or shorten the instruction"
        )
