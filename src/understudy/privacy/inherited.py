"""What a run takes for public and was itself released: its promise and the run's own add up."""

from __future__ import annotations

from pydantic import Field

from understudy.frozen import Frozen
from understudy.privacy.labels import ACCOUNTANT, Guarantee, released, totals
from understudy.privacy.ledger.records import Charge
from understudy.privacy.shown_cost import cost_in_words


class EarlierRelease(Frozen):
    """A model or table that a run takes for public, and that was itself released."""

    setting: str = Field(description="Which names it.")
    name: str
    guarantees: tuple[Guarantee, ...] = Field(description="What it promised, one for each charge.")

    def in_words(self) -> str:
        """What it is and what it promised."""
        promised = " and ".join(
            f"{cost_in_words(one.epsilon, one.delta, unit=one.unit, relation=one.relation, accountant=one.accountant)} "
            f"of source {one.source!r} (charge {one.charge_id})"
            for one in self.guarantees
        )
        return f"{self.setting}={self.name} was itself released, under a promise of {promised}"


def inherited_in_words(inherited: tuple[EarlierRelease, ...], charge: Charge) -> list[str]:
    """What the run builds on, and what is promised to whoever is in the rows of all of it."""
    said = [f"{release.in_words()}." for release in inherited]
    if not inherited or not charge.exportable:
        return said
    own = charge.guarantee()
    distinct = {one.charge_id: one for release in inherited for one in release.guarantees} | {own.charge_id: own}
    try:
        epsilon, delta = totals(released(*distinct.values()))[own.source]
    except ValueError:
        return [*said, "They and this run protect different units, so that their epsilons cannot be added."]
    cost = cost_in_words(epsilon, delta, unit=own.unit, relation=own.relation, accountant=f"sum of {ACCOUNTANT}")
    return [*said, f"Whoever is in the rows of this run and of these is promised the sum, {cost}."]
