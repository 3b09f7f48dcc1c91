"""Values cannot be changed, and a profile fills what is not given."""

from typing import Annotated, ClassVar

import pytest
from pydantic import Field, ValidationError

from understudy.frozen import DigestOf, Frozen, NotInKeys, Profile, Profiled, Profiles, not_in_keys


class Step(Frozen):
    size: float = 0.5
    norm: float = 1.0


class Training(Profiled):
    profiles: ClassVar[Profiles] = {"tiny": {"rounds": 2}, "paper": {"rounds": 30, "step": {"size": 0.1}}}

    profile: Profile = "tiny"
    rounds: int = 5
    step: Step = Field(default_factory=Step)


def test_a_value_is_neither_changed_nor_extended():
    with pytest.raises(ValidationError, match="frozen"):
        Step().size = 2.0
    with pytest.raises(ValidationError, match="width"):
        Step(width=3)


class Read(Frozen):
    table: str = "rows.csv"
    table_digest: Annotated[str, DigestOf("table")] = ""
    patience_s: Annotated[float, NotInKeys()] = 60.0


class Whole(Frozen):
    read: Read = Field(default_factory=Read)
    step: Step = Field(default_factory=Step)


def test_a_place_whose_digest_is_known_does_not_matter_nor_does_patience():
    here, there = (
        Whole(read=Read(table=name, table_digest="4f2a", patience_s=wait))
        for name, wait in (("a.csv", 1), ("b.csv", 2))
    )
    assert not_in_keys(here) == {"read": {"table": True, "patience_s": True}}
    assert here.model_dump_json(exclude=not_in_keys(here)) == there.model_dump_json(exclude=not_in_keys(there))
    assert not_in_keys(Whole()) == {"read": {"patience_s": True}}, "nobody knows what is there"


def test_a_profile_fills_what_is_not_given_section_by_section():
    assert Training().rounds == 2, "the profile that the class names by default"
    paper = Training(profile="paper", step={"norm": 3.0})
    assert (paper.rounds, paper.step) == (30, Step(size=0.1, norm=3.0))
    assert Training(profile="paper", step=Step(), rounds=1) == Training.model_construct(
        profile="paper", step=Step(), rounds=1
    )


def test_an_unknown_profile_is_refused():
    with pytest.raises(ValidationError, match="profile"):
        Training(profile="large")
