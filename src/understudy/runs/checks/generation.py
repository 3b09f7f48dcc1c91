"""The base model draws texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from understudy.errors import InputError

if TYPE_CHECKING:
    import torch

    from understudy.models.loading import LoadedModel

NEW_TOKENS = 4
# Digests of base models that have generated in this process: the command line and the flow both look.
_GENERATED: set[str] = set()


def generation(base: LoadedModel) -> str:
    """Two texts of a few tokens from the base model, on the CPU: a GPU may be another run's at this moment."""
    if base.digest not in _GENERATED:
        try:
            _draw_two(base)
        except InputError:
            raise
        # Whatever a foreign architecture raises.
        except Exception as error:
            raise InputError(
                f"model={base.name!r}: expected a model that can generate, found {type(error).__name__} when two texts "
                f"were drawn: {' '.join(str(error).split())[:200]}; fix its config.json or choose another model"
            ) from error
        _GENERATED.add(base.digest)
    return f"{base.name} draws texts"


def _draw_two(base: LoadedModel) -> None:
    import torch

    from understudy.generation.config import SamplingConfig
    from understudy.generation.prompts import special_ids, special_token_ids
    from understudy.generation.sampling import Step, sample

    def finite(_: Any, step: Step) -> torch.Tensor:
        if not bool(torch.isfinite(step.logits).all()):
            raise InputError(
                f"model={base.name!r}: expected finite scores of the next token, found others when two texts were "
                "drawn; choose another model"
            )
        return step.logits

    bos, eos, pad = special_ids(base.tokenizer)
    word = (base.tokenizer.encode(" a", add_special_tokens=False) or [eos])[0]
    ids, mask = torch.tensor([[pad, bos], [bos, word]], device="cpu"), torch.tensor([[0, 1], [1, 1]], device="cpu")
    drawn = sample(
        base.model,
        (ids, mask),
        config=SamplingConfig(max_new_tokens=NEW_TOKENS),
        seeds=(0, 1),
        eos=eos,
        forbidden=special_token_ids(base.tokenizer),
        step_hook=finite,
    )
    for tokens in drawn:
        base.tokenizer.decode(tokens)
