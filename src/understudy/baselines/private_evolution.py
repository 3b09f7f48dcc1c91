"""Private Evolution for text at client level: texts that clients vote for become the examples of the next prompts.

Papers: Lin et al. 2023 (arXiv 2305.15560, Algorithms 1 and 2: nearest-neighbour histogram, threshold, resampling); Xie
et al. 2024 (Aug-PE, text); Hou et al. 2024 (PrE-Text, arXiv 2406.02958: federated clients, threshold 0.1626, 1024
texts, 20 rounds); in POPri section 4, figure 5 and appendix C.3.

*Deviations*. Variation is by in-context prompting with the generator itself, as POPri describes the method, where
PrE-Text refills masked words. A client's vector is the share of its samples whose nearest candidate each one is, so its
norm is at most 1 whatever the number of samples; PrE-Text counts samples and scales its noise by their largest number.
Neither lookahead nor a variation degree. Where no candidate passes the threshold all of them survive alike, for the
papers do not say what then. The last round's survivors are the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from understudy.baselines.votes import Floats, Samples, Vectors, check_clients, release_votes, survival
from understudy.errors import InputError
from understudy.frozen import Profile, Profiled, Profiles
from understudy.generation.prompts import row_seeds
from understudy.privacy.accounting import sgd_event
from understudy.privacy.calibration import calibrate_noise_multiplier
from understudy.privacy.dpsgd.plan import DpSgdPlan, Stream
from understudy.privacy.mechanisms import Mechanisms
from understudy.quantities import Count, Probability, PublicSeed, setting

Generate = Callable[[Sequence[str], int, int], Sequence[str]]  # (prompts, texts per prompt, round) -> texts
Embed = Callable[[Sequence[str]], Vectors]
ToPrompt = Callable[[Sequence[str]], str]

NAME = "private-evolution"
STREAM = "votes"
_PROFILES: Profiles = {
    "tiny": {},
    "paper": {"rounds": 20, "prompts": 128, "per_prompt": 8, "threshold_votes": 0.1626, "threshold_noise": 0.0},
}


class EvolutionConfig(Profiled):
    """Rounds, texts per round, and how survivors are told; public values only."""

    profiles: ClassVar[Profiles] = _PROFILES

    profile: Profile = "tiny"
    rounds: Count = setting(3, "T, at least 1. tiny 3, paper 20.")
    prompts: Count = setting(16, "Prompts per round. tiny 16, paper 128.")
    per_prompt: Count = setting(6, "Texts per prompt. tiny 6, paper 8: 1024 texts a round.")
    examples_per_prompt: int = setting(3, "Texts that one prompt shows; paper 3.", le=64, ge=1)
    sampling_probability: Probability = setting(1.0, "Chance that a client takes part in a round. Poisson sampling.")
    threshold_votes: float = setting(
        0.0, "Taken off every noised count, in clients. tiny 0, paper 0.1626.", ge=0, le=1e9
    )
    threshold_noise: float = setting(
        1.0, "Likewise, in standard deviations of the noise. tiny 1, paper 0.", ge=0, le=100
    )
    public_seed: PublicSeed = setting(0, "Which examples stand in which prompt.")


@dataclass(frozen=True, eq=False)
class Generation:
    """Candidates of one round and how they were judged; released if the plan has noise, else private.

    Attributes:
        texts: (m,) candidates.
        probabilities: (m,) float64, sum 1; 0 for those that did not survive.
    """

    texts: tuple[str, ...] = field(repr=False)
    probabilities: Floats = field(repr=False)

    @property
    def survivors(self) -> list[str]:
        """Texts above the threshold, the most voted first."""
        order = np.argsort(-self.probabilities, kind="stable")
        return [self.texts[i] for i in order if self.probabilities[i] > 0]


def plan(config: EvolutionConfig, *, n: int, epsilon: float, delta: float, cache: Path | None = None) -> DpSgdPlan:
    """Calibrate the noise of all rounds to one (epsilon, delta), by PLD.

    *Guarantee*: `plan(...).event`, T Poisson-sampled Gaussian queries, is (epsilon, delta)-DP (unit client, add/remove
    one client realised as a null client in its slot) against those who do not see who took part.

    Args:
        config: Rounds and sampling.
        n: Client slots, null ones included; public.
        epsilon: Target; infinity gives zero noise.
        delta: Target.
        cache: Folder for calibrations; None for none.

    Raises:
        InputError: A value is out of range.
    """
    check_clients(n)
    noise = calibrate_noise_multiplier(
        lambda z: sgd_event(sampling_probability=config.sampling_probability, noise_multiplier=z, steps=config.rounds),
        epsilon=epsilon,
        delta=delta,
        cache=cache,
    )
    return DpSgdPlan(
        name=NAME,
        n=n,
        sampling_probability=config.sampling_probability,
        steps=config.rounds,
        streams=(Stream(name=STREAM, l2_clip_norm=1.0, noise_multiplier=noise),),
    )


def list_prompt(examples: Sequence[str]) -> str:
    """A numbered list that the generator continues by one more text (POPri, figure 5)."""
    heading = "Original Text Sample"
    lines = [f"List of {len(examples) + 3} diverse original text samples:"]
    lines += [f"{heading} {i}\n{' '.join(text.split())}" for i, text in enumerate(examples, start=1)]
    return "\n\n".join([*lines, f"{heading} {len(examples) + 1}\n"])


def evolve(
    samples: Samples,
    seeds: Sequence[str],
    *,
    config: EvolutionConfig,
    plan: DpSgdPlan,
    mechanisms: Mechanisms,
    generate: Generate,
    embed: Embed,
    to_prompt: ToPrompt = list_prompt,
) -> list[Generation]:
    """All rounds: generate, vote, noise, keep, and again with the survivors as examples.

    *Guarantee*: `plan.event` (unit client, add/remove one client realised as a null client in its slot, n public), if
    `generate` and `embed` see nothing private; at noise multiplier 0 none, and the result is private.

    Args:
        samples: Of the clients; private.
        seeds: Public texts, the examples of the first prompts.
        config: The charged settings.
        plan: What was charged.
        mechanisms: Of the charge.
        generate: (prompts, per_prompt, round) -> len(prompts) * per_prompt texts, prompt by prompt.
        embed: Texts -> (texts, d), in the space of `samples.vectors`.
        to_prompt: Examples -> prompt.

    Returns:
        One entry per round; the last one is the result.

    Raises:
        InputError: The plan is for other settings, there is no seed, or `generate` gives another number of texts.
    """
    _check(config, plan, samples)
    history: list[Generation] = []
    for round in range(config.rounds):
        parents = history[-1] if history else _equal(seeds)
        prompts = next_prompts(parents, config.prompts, config=config, round=round, to_prompt=to_prompt)
        texts = tuple(generate(prompts, config.per_prompt, round))
        if len(texts) != len(prompts) * config.per_prompt:
            wanted = len(prompts) * config.per_prompt
            raise InputError(f"round {round}: expected {wanted} texts from the generator, found {len(texts)}")
        votes = release_votes(samples, embed(texts), plan=plan, mechanisms=mechanisms, round=round)
        history.append(Generation(texts, survival(votes, threshold=threshold(config, plan))))
    return history


def next_prompts(
    parents: Generation,
    count: int,
    *,
    config: EvolutionConfig,
    round: int,
    to_prompt: ToPrompt = list_prompt,
) -> list[str]:
    """Prompts that show surviving texts as examples, drawn in proportion to their votes; post-processing.

    Args:
        parents: Of the round before, or the public seeds alike.
        count: Prompts.
        config: Examples per prompt, public seed.
        round: The round that the prompts are for; a number of its own for texts drawn after the last one.
        to_prompt: As `evolve`.

    Returns:
        (count,) prompts, each with different examples; fewer examples where fewer texts survived.
    """
    alive = np.flatnonzero(parents.probabilities)
    share = parents.probabilities[alive] / parents.probabilities[alive].sum()
    shown = min(config.examples_per_prompt, len(alive))
    prompts = []
    for seed in row_seeds(config.public_seed, range(count), purpose=f"{NAME}/{round}"):
        chosen = np.random.default_rng(seed).choice(alive, size=shown, replace=False, p=share)
        prompts.append(to_prompt([parents.texts[i] for i in chosen]))
    return prompts


def threshold(config: EvolutionConfig, plan: DpSgdPlan) -> float:
    """What is taken off every noised count; public."""
    (stream,) = plan.streams
    return config.threshold_votes + config.threshold_noise * stream.noise_multiplier * stream.l2_clip_norm


def _equal(texts: Sequence[str]) -> Generation:
    if not texts:
        raise InputError("expected public seed texts for the first prompts, found none")
    return Generation(tuple(texts), np.full(len(texts), 1.0 / len(texts)))


def _check(config: EvolutionConfig, plan: DpSgdPlan, samples: Samples) -> None:
    expected, found = (config.rounds, config.sampling_probability), (plan.steps, plan.sampling_probability)
    if expected != found or [stream.l2_clip_norm for stream in plan.streams] != [1.0]:
        raise InputError(
            f"expected a plan of this config (rounds, sampling probability) {expected} and clip norm 1, found {found}; "
            "plan again"
        )
    if plan.n != samples.n or len(samples.vectors) != len(samples.owners):
        raise InputError(
            f"plan.n={plan.n}: expected as many slots and an owner per sample, found {samples.n} slots; "
            "null clients keep theirs"
        )
