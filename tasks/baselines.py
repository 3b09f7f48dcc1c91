"""What the papers compare with, as tasks that any method's flow can call."""

from __future__ import annotations

from understudy.artifacts.access import ArtifactRef, write_table
from understudy.generation.config import SamplingConfig
from understudy.privacy import labels
from understudy.tasks.engine.runtime import compute, progress, task


@task(name="zero-shot")
def zero_shot(
    model: str,
    model_digest: str,
    label_names: tuple[str, ...],
    instruction: str,
    about: str,
    rows: int,
    sampling: SamplingConfig,
    public_seed: int,
) -> ArtifactRef:
    """As many texts from the base model by instruction alone: what private rows add is measured on it.

    Args:
        model: shipped name, folder or hub id.
        model_digest: of its files.
        label_names: every label, public.
        instruction: with {label} where the label's name goes; empty asks by the words of `about`.
        about: public words that say what the texts are.
        rows: texts in all, shared out equally.
        sampling: how tokens are drawn.
        public_seed: of the draws.
    """
    from understudy.baselines.prompting import zero_shot as draw
    from understudy.generation.prompts import Instruction
    from understudy.models.loading import load_model

    table = draw(
        load_model(model, digest=model_digest, compute=compute()),
        label_names,
        rows=rows,
        instruction=Instruction(instruction, about),
        sampling=sampling,
        public_seed=public_seed,
        progress=progress,
    )
    return write_table(table, kind="prompt-only", label=labels.public(), parents=())
