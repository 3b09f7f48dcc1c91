"""What a run takes for public and was itself released: its promise and the run's own add up."""

from __future__ import annotations

from pydantic import Field

from understudy.frozen import Frozen
from understudy.privacy.labels import ACCOUNTANT, Guarantee, released, total
from understudy.privacy.ledger.records import Charge
from understudy.privacy.shown_cost import cost_in_words


class EarlierRelease(Frozen):
    """A model or table that a run takes for public, and that was itself released."""

    setting: str = Field(description="Which names it.")
    name: str
    guarantees: tuple[Guarantee, ...] = Field(description="What it promised, one for each charge.")
    disjoint: tuple[str, ...] = Field(
        default=(), description="Those of their sources that were declared to have no unit in common with the run's."
    )

    heuristic: bool = Field(
        default=False, description="Whether any of these promises rests on a step that is not proven."
    )

    @property
    def adds(self) -> bool:
        """Whether anybody may be in its rows and in the run's."""
        return any(one.source not in self.disjoint for one in self.guarantees)

    def in_words(self) -> str:
        """What it is and what it promised."""
        promised = " and ".join(
            f"{cost_in_words(one.epsilon, one.delta, unit=one.unit, relation=one.relation, accountant=one.accountant)} "
            f"of source {one.source!r} (charge {one.charge_id})"
            for one in self.guarantees
        )
        kind = "heuristic promise" if self.heuristic else "promise"
        return f"{self.setting}={self.name} was itself released, under a {kind} of {promised}"


def inherited_in_words(inherited: tuple[EarlierRelease, ...], charge: Charge) -> list[str]:
    """What the run builds on, and what is promised to whoever is in the rows of all of it."""
    said = [f"{release.in_words()}." for release in inherited]
    if not inherited or not charge.exportable:
        return said
    own, declared = charge.guarantee(), sorted({name for release in inherited for name in release.disjoint})
    said += [f"Source {name!r} was registered as disjoint: nobody in it is in {own.source!r}." for name in declared]
    if not any(release.adds for release in inherited):
        return [*said, "So this run's own promise holds as it is."]
    distinct = {one.charge_id: one for release in inherited for one in release.guarantees} | {own.charge_id: own}
    try:
        epsilon, delta = total(released(*distinct.values()), own.source, disjoint=declared)
    except ValueError:
        return [*said, "They and this run protect different units, so that their epsilons cannot be added."]
    cost = cost_in_words(epsilon, delta, unit=own.unit, relation=own.relation, accountant=f"sum of {ACCOUNTANT}")
    whom = "those of them that are not disjoint" if declared else "these"
    unproven = any(release.heuristic and release.adds for release in inherited)
    tail = ", which is heuristic like the promise that it contains" if unproven else ""
    return [*said, f"Whoever is in the rows of this run and of {whom} is promised the sum, {cost}{tail}."]
