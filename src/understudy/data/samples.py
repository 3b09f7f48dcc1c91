"""The sample data sets that ship with Understudy, generated from a public seed.

They play the part of private data in the first tour and in the tests: short film reviews with a sentiment, messages to
a clinic with invented names and numbers, notes to the two desks of a ferry line, instructions with responses, and
diaries of forty clients. `public` plays the part of public text, from which prompts take their examples. Every choice
is a sha256 of the seed and a counter, so any machine and any version generates the same rows.
`python -m understudy.data.samples` writes the files.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.data import ferry_texts as ferry
from understudy.data import sample_texts as phrases
from understudy.errors import InputError
from understudy.shipped import SAMPLES

T = TypeVar("T")

NAMES = ("reviews", "reviews-test", "clinic", "ferry", "ferry-test", "instructions", "clients", "public")

# The samples' cards: which labels they have is a fact of the samples, and public.
LABEL_NAMES = {
    "reviews": ("negative", "positive"),
    "reviews-test": ("negative", "positive"),
    "clinic": tuple(phrases.CLINIC),
    "ferry": ("landing", "saloon"),
    "ferry-test": ("landing", "saloon"),
}


def declared_labels(spec: str) -> tuple[str, ...] | None:
    """The labels on the card of `sample:NAME`; None for what is no shipped sample, or one without labels."""
    prefix, _, name = spec.partition(":")
    return LABEL_NAMES.get(name) if prefix == "sample" else None


class Chooser:
    """A stream of choices that is a function of its public seed alone."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._count = 0

    def below(self, bound: int) -> int:
        """The next number in [0, bound); the bias of the remainder is below 2^-56."""
        self._count += 1
        digest = hashlib.sha256(f"{self._seed}/{self._count}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % bound

    def pick(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return options[self.below(len(options))]


def generate(name: str) -> pa.Table:
    """Generate the sample `name`.

    Raises:
        InputError: for an unknown name.
    """
    if name not in NAMES:
        raise InputError(f"sample:{name}: expected one of {', '.join(f'sample:{known}' for known in NAMES)}")
    makers: dict[str, Callable[[], pa.Table]] = {
        "reviews": lambda: _reviews()[0],
        "reviews-test": lambda: _reviews()[1],
        "clinic": _clinic,
        "ferry": lambda: _ferry()[0],
        "ferry-test": lambda: _ferry()[1],
        "instructions": _instructions,
        "clients": _clients,
        "public": _public,
    }
    return makers[name]()


def write_all(directory: Path = SAMPLES) -> None:
    """Write every sample as `directory/NAME.parquet`."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        pq.write_table(generate(name), directory / f"{name}.parquet", compression="zstd")


def _reviews(train: int = 600, test: int = 200) -> tuple[pa.Table, pa.Table]:
    choose = Chooser("understudy/reviews")
    return _labelled(lambda label: _review(choose, good=label == "positive"), ("negative", "positive"), train, test)


def _labelled(write: Callable[[str], str], names: Sequence[str], train: int, test: int) -> tuple[pa.Table, pa.Table]:
    """Different texts of each label in turn, to train on and to test with."""
    rows: dict[str, str] = {}
    while len(rows) < train + test:
        label = names[len(rows) % len(names)]
        rows.setdefault(write(label), label)
    texts, labels = list(rows), list(rows.values())
    return (
        pa.table({"text": texts[:train], "label": labels[:train]}),
        pa.table({"text": texts[train:], "label": labels[train:]}),
    )


def _parts(choose: Chooser, openings: Sequence[str], *, asides: Sequence[str], ends: Sequence[str]) -> list[str]:
    """An opening, sometimes an aside, mostly an end."""
    parts = [choose.pick(openings)]
    if choose.below(3) == 0:
        parts.append(choose.pick(asides))
    if choose.below(5) > 1:
        parts.append(choose.pick(ends))
    return parts


def _review(choose: Chooser, *, good: bool) -> str:
    """A clause, sometimes an aside, mostly a verdict; half of the clauses praise and blame at once."""
    side, other = (phrases.GOOD, phrases.BAD) if good else (phrases.BAD, phrases.GOOD)
    film, about, maker = choose.pick(phrases.FILMS), choose.pick(phrases.ABOUT), choose.pick(phrases.MAKERS)
    first, against = choose.pick(side), choose.pick(other)
    second = choose.pick([phrase for phrase in side if phrase != first])
    clauses = (
        f"this {film} about {about} offers {first} and {second}",
        f"{maker} gives this {film} {first}",
        f"{first} and {second} in a {film} about {about}",
        f"despite {against} , the {film} has {first}",
        f"it starts with {against} but {maker} soon brings {first}",
        f"i expected {against} and got {first} instead",
        f"other films about {about} have {against} , this one has {first}",
    )
    verdicts = phrases.GOOD_VERDICT if good else phrases.BAD_VERDICT
    parts = _parts(choose, clauses, asides=phrases.NEUTRAL, ends=verdicts)
    return " . ".join(parts) + choose.pick((" .", " !", " ."))


def _ferry(train: int = 1200, test: int = 400) -> tuple[pa.Table, pa.Table]:
    choose = Chooser("understudy/ferry")
    return _labelled(lambda label: _ferry_note(choose, of_pier=label == "landing"), LABEL_NAMES["ferry"], train, test)


def _ferry_note(choose: Chooser, *, of_pier: bool) -> str:
    """What is wrong, on which boat, perhaps with an aside or a lesser matter of the other desk, mostly a wish."""
    boat, pier = choose.pick(ferry.BOATS), choose.pick(ferry.PIERS)
    fault, other = _ferry_fault(choose, of_pier=of_pier), _ferry_fault(choose, of_pier=not of_pier)
    aside = choose.pick(ferry.BOARD_ASIDES if of_pier else ferry.PIER_ASIDES)
    when = choose.pick(ferry.TIMES)
    faults = (
        f"{when}, {{boat}}: {fault}",
        f"on {when} of the {{boat}} {fault}",
        f"{fault}, {when} again",
        f"{aside}, {fault}",
        f"{fault} on {when}, {aside}",
        f"never mind that {other}: on {when} {fault}",
        f"{fault}. that {other} can wait",
    )
    wishes = ferry.PIER_WISHES if of_pier else ferry.BOARD_WISHES
    parts = _parts(choose, faults, asides=ferry.NEUTRAL, ends=wishes)
    note = ". ".join(parts).format(
        boat=boat,
        pier=pier,
        lane=choose.pick(ferry.LANES),
        fare=choose.pick(ferry.FARE),
        room=choose.pick(ferry.ROOMS),
        slip=choose.pick(ferry.SLIPS),
    )
    return f"{note}."


def _ferry_fault(choose: Chooser, *, of_pier: bool) -> str:
    if not of_pier:
        return choose.pick(ferry.BOARD_FAULTS)
    if choose.below(3) == 0:
        return choose.pick(ferry.LANE_FAULTS)
    return f"{choose.pick(ferry.PARTS)} at {{pier}} {choose.pick(ferry.PIER_FAULTS)}"


def _clinic(size: int = 300) -> pa.Table:
    choose = Chooser("understudy/clinic")
    rows: dict[str, str] = {}
    while len(rows) < size:
        topic = choose.pick(tuple(phrases.CLINIC))
        # 555-0100 to 555-0199 are reserved for fiction.
        message = choose.pick(phrases.CLINIC[topic]).format(
            name=f"{choose.pick(phrases.FIRST_NAMES)} {choose.pick(phrases.LAST_NAMES)}",
            date=f"{choose.pick(phrases.MONTHS)} {1 + choose.below(28)}",
            phone=f"({200 + choose.below(700)}) 555-01{choose.below(100):02d}",
            complaint=choose.pick(phrases.COMPLAINTS),
            remedy=choose.pick(phrases.REMEDIES),
        )
        rows.setdefault(message, topic)
    return pa.table({"text": list(rows), "label": list(rows.values())})


def _instructions(size: int = 200) -> pa.Table:
    choose = Chooser("understudy/instructions")
    rows: dict[str, str] = {}
    while len(rows) < size:
        question, answer, subjects, circumstances, tips = choose.pick(phrases.INSTRUCTIONS)
        subject, where, tip = choose.pick(subjects), choose.pick(circumstances), choose.pick(tips)
        more = choose.pick([other for other in tips if other != tip])
        opening = choose.pick(("", "Please help. ", "A short question: ", "For my notes: "))
        rows.setdefault(
            opening + question.format(subject=subject, where=where),
            answer.format(subject=subject, where=where, tip=tip, more=more),
        )
    return pa.table({"instruction": list(rows), "response": list(rows.values())})


def _clients(size: int = 40) -> pa.Table:
    choose = Chooser("understudy/clients")
    clients, texts = [], []
    for client in range(size):
        hobby = choose.pick(tuple(phrases.HOBBIES))
        for _ in range(3 + choose.below(4)):
            done, then = choose.pick(phrases.HOBBIES[hobby]), choose.pick(phrases.HOBBIES[hobby])
            day = f"{choose.pick(phrases.MONTHS)} {1 + choose.below(28)}, {choose.pick(phrases.WEATHER)}"
            more = f" Later I {then}." if then != done else ""
            clients.append(f"client-{client:02d}")
            texts.append(f"{day}. Today I {done}.{more} {choose.pick(phrases.MOODS)}")
    return pa.table({"client_id": clients, "text": texts})


def _public(size: int = 240) -> pa.Table:
    choose = Chooser("understudy/public")
    texts: dict[str, None] = {}
    while len(texts) < size:
        weather = choose.pick(phrases.WEATHER)
        text = choose.pick(phrases.PUBLIC[choose.pick(tuple(phrases.PUBLIC))]).format(
            place=choose.pick(phrases.PLACES),
            weather=weather,
            other=choose.pick([other for other in phrases.WEATHER if other != weather]),
            month=choose.pick(phrases.MONTHS),
            film=choose.pick(phrases.FILMS),
            about=choose.pick(phrases.ABOUT),
        )
        texts.setdefault(text[0].upper() + text[1:])
    return pa.table({"text": list(texts)})


if __name__ == "__main__":
    write_all()
