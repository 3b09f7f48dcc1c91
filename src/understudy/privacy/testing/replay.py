"""Record and replay: a test that a method's outputs depend on private rows through the mechanism interface alone.

A whole method runs on data D while every mechanism's output is recorded; then it runs on a neighbour D' and
gets the recorded outputs back. Whatever differs in what anyone can see has not come through a mechanism;
the distance of the two exact queries must be within the declared sensitivity; noise and masks must have the
accounted distribution. It falsifies, it does not prove, and timing is outside it.

Source: "Re:cord-play", arXiv 2602.17454. Deviations: one pass forces the differing slot, or every slot, into every
batch, because with the real masks the distance is vacuous in most steps. In another the neighbour draws masks of its
own, and takes the contrary of every second one, because a batch's size is as private as what is in it and looks the
same wherever both runs get the same mask; one recorded batch of that pass is empty. A last one replays the outputs on
data that differ in every record, because what does not come through a mechanism may not depend on any data, and a
choice that one record seldom turns (the best of some checkpoints) shows there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from understudy.errors import UnderstudyError
from understudy.privacy import mechanisms as mechanisms_module
from understudy.privacy.ledger.records import KeyMaterial
from understudy.privacy.mechanism_call import Mechanism, Values
from understudy.privacy.mechanisms import Mechanisms
from understudy.privacy.testing.statistics import Call, mask_faults, noise_faults

Data = TypeVar("Data")
MechanismsFactory = Callable[[KeyMaterial], Mechanisms]
Forced = Sequence[int] | Literal["every"]
Draw = Callable[[], dict[str, Tensor]]

# The recorded step whose batch is empty in the pass of own masks; an odd one, in which the neighbour's is not.
EMPTY_STEP = 1


@contextmanager
def recording(make_mechanisms: MechanismsFactory) -> Iterator[None]:
    """Every `Mechanisms.live` of this process is opened by `make_mechanisms` meanwhile: for tests of whole flows.

    Raises:
        RuntimeError: inside of another `recording`.
    """
    if mechanisms_module._opened_by is not None:
        raise RuntimeError("expected one recording at a time")
    mechanisms_module._opened_by = make_mechanisms
    try:
        yield
    finally:
        mechanisms_module._opened_by = None


@dataclass(frozen=True)
class Observation:
    """What anyone outside the private root could see of a run.

    Attributes:
        visible: name -> bytes of every output not labelled private: artifacts, shapes, counts, file names,
            log lines.
        charges: one text per charge that says all of it but the random id (event, unit, relation, epsilon,
            delta).
    """

    visible: Mapping[str, bytes]
    charges: tuple[str, ...]


class ReplayDiverged(UnderstudyError):
    """The run on the neighbour made other mechanism calls than the recorded run."""


class Recording:
    """A recorder that keeps every call.

    Args:
        forced: slots that take part in every batch, whatever the mask says; or every slot.
        empty: steps in which nobody takes part.

    Attributes:
        calls: what was asked and what came back.
        drawn: the masks as they were drawn.
    """

    def __init__(self, forced: Forced = (), *, empty: Sequence[int] = ()) -> None:
        self.calls: list[Call] = []
        self.drawn: list[Call] = []
        self._forced = slice(None) if forced == "every" else list(forced)
        self._empty = empty

    def observe(self, mechanism: Mechanism, query: Values, draw: Draw) -> dict[str, Tensor]:
        """Record and return what `draw` gives."""
        output = draw()
        if mechanism.kind == "poisson":
            self.drawn.append(Call(mechanism, {}, _copy(output)))
            output["mask"][self._forced] = True
            if mechanism.step in self._empty:
                output["mask"][:] = False
        self.calls.append(Call(mechanism, _copy(query), _copy(output)))
        return output


class Replaying:
    """A recorder that returns recorded outputs and keeps the queries that would have been asked.

    Args:
        recorded: calls of the recorded run.
        own_masks: draw masks as this run would, and take the contrary of them in odd steps, instead of those recorded.

    Attributes:
        queries: those asked so far.
    """

    def __init__(self, recorded: Sequence[Call], *, own_masks: bool = False) -> None:
        self._recorded = recorded
        self._own_masks = own_masks
        self._masked: set[int] = set()
        self.queries: list[dict[str, Tensor]] = []

    def observe(self, mechanism: Mechanism, query: Values, draw: Draw) -> dict[str, Tensor]:
        """Return the recorded output of the call at this place in the order.

        Raises:
            ReplayDiverged: when this is another call than the recorded one.
        """
        index = len(self.queries)
        if index >= len(self._recorded):
            raise ReplayDiverged(f"call {index}: expected no further call, found {mechanism}")
        expected = self._recorded[index]
        if mechanism != expected.mechanism:
            raise ReplayDiverged(f"call {index}: expected {expected.mechanism}, found {mechanism}")
        if _shapes(query) != _shapes(expected.query):
            raise ReplayDiverged(f"call {index}: shapes {_shapes(expected.query)} became {_shapes(query)}")
        self.queries.append(_copy(query))
        if mechanism.kind == "poisson" and self._own_masks:
            self._masked.add(mechanism.step)
            mask = draw()["mask"]
            return {"mask": ~mask if mechanism.step % 2 else mask}
        return _copy(expected.output)

    def distances(self) -> Iterator[float]:
        """Of each query to the recorded one, as a multiple of the sensitivity; where both are on the same mask."""
        for call, query in zip(self._recorded, self.queries, strict=False):
            if not (call.mechanism.step % 2 and call.mechanism.step in self._masked):
                yield _distance(call, query)


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found.

    Attributes:
        differences: what differs between D and D' although it is visible.
        distance_forced: largest distance of two exact queries, as a multiple of the declared sensitivity,
            with the differing slot in every batch; nan where nothing was forced. 0 means that the pair
            tested nothing.
        distance_real: the same with the real masks.
        charges: faults of the charges.
        statistics: faults of noise and masks.
        tolerance: by how much a distance may exceed 1 through float rounding.
    """

    differences: tuple[str, ...]
    distance_forced: float
    distance_real: float
    charges: tuple[str, ...]
    statistics: tuple[str, ...]
    tolerance: float

    @property
    def faults(self) -> tuple[str, ...]:
        """Every fault in words; empty when the replay found none."""
        distances = {"forced": self.distance_forced, "real": self.distance_real}
        too_far = tuple(
            f"a query moved by {distance:.6g} times its declared sensitivity ({name} mask)"
            for name, distance in distances.items()
            if distance > 1 + self.tolerance
        )
        return (*self.differences, *too_far, *self.charges, *self.statistics)


def replay_check(
    run: Callable[[Data, MechanismsFactory], Observation],
    *,
    data: Data,
    neighbour: Data,
    forced: Forced = (),
    unrelated: Data | None = None,
    noiseless: bool = False,
    tolerance: float = 1e-4,
    significance: float = 1e-6,
) -> ReplayReport:
    """Run a method on `data` and, with the recorded mechanism outputs, on `neighbour`; compare.

    Args:
        run: the whole method: gets the private data and a function that makes its mechanism interface from key
            material, and returns what can be seen. It must be deterministic, with random ids pinned by the
            caller.
        data: one data set.
        neighbour: the same with one record replaced by the null record.
        forced: slots, the differing one among them, that take part in every batch of a pass of their own; nothing
            where nothing is sampled.
        unrelated: data of the same public shape and wholly different records, for a further pass; its queries
            may lie anywhere, what is visible may not differ.
        noiseless: accept mechanisms without noise (an epsilon = inf run, whose output is private).
        tolerance: by how much a distance may exceed its sensitivity, relative, through float rounding.
        significance: of each statistical test.

    Returns:
        The report; `report.faults` is empty when nothing was found.
    """
    recorder = Recording(empty=(EMPTY_STEP,))
    first = run(data, lambda material: Mechanisms(material, recorder=recorder))
    real = _replay(run, neighbour, first, Replaying(recorder.calls, own_masks=True), recorder.calls)
    passes = [real]
    if forced:
        every = Recording(forced)
        with_it = run(data, lambda material: Mechanisms(material, recorder=every))
        passes.append(_replay(run, neighbour, with_it, Replaying(every.calls), every.calls))
    if unrelated is not None:
        far = _replay(run, unrelated, first, Replaying(recorder.calls), recorder.calls)
        passes.append(replace(far, distance=0.0))
    statistics = [*noise_faults(recorder.calls, significance=significance, noiseless=noiseless)]
    statistics += mask_faults(recorder.drawn, significance=significance)
    return ReplayReport(
        differences=tuple(dict.fromkeys(d for one in passes for d in one.differences)),
        distance_forced=passes[1].distance if forced else float("nan"),
        distance_real=real.distance,
        charges=tuple(dict.fromkeys(fault for one in passes for fault in one.charges)),
        statistics=tuple(statistics),
        tolerance=tolerance,
    )


@dataclass(frozen=True)
class _Pass:
    differences: list[str]
    distance: float
    charges: list[str]


def _replay(
    run: Callable[[Data, MechanismsFactory], Observation],
    data: Data,
    first: Observation,
    replaying: Replaying,
    calls: list[Call],
) -> _Pass:
    charges: list[str] = []
    try:
        second = run(data, lambda material: Mechanisms(material, recorder=replaying))
    except Exception as error:
        # A run that ends on these data alone says something about a private row: a finding, not a failure.
        differences = [f"the run on the neighbour ended with {type(error).__name__}: {error}"]
    else:
        differences = _differences(first, second)
        if len(replaying.queries) != len(calls):
            differences.append(f"{len(calls)} mechanism calls became {len(replaying.queries)}")
        charges = _charge_faults(first.charges, second.charges)
    return _Pass(differences, max(replaying.distances(), default=0.0), charges)


def _differences(first: Observation, second: Observation) -> list[str]:
    names = sorted({*first.visible, *second.visible})
    pairs = {name: (first.visible.get(name), second.visible.get(name)) for name in names}
    return [f"visible output {name!r} differs: {_where(*pair)}" for name, pair in pairs.items() if pair[0] != pair[1]]


def _where(first: bytes | None, second: bytes | None) -> str:
    """The place of the first difference of two outputs, and what stands around it."""
    if first is None or second is None:
        return f"only the {'second' if first is None else 'first'} run has it"
    same = (one == other for one, other in zip(first, second, strict=False))
    place = next((at for at, equal in enumerate(same) if not equal), min(len(first), len(second)))
    around = slice(max(place - 60, 0), place + 140)
    return f"from byte {place} on, {first[around]!r} and {second[around]!r}"


def _charge_faults(first: tuple[str, ...], second: tuple[str, ...]) -> list[str]:
    found = [] if len(first) == 1 else [f"expected a single charge, found {len(first)}"]
    return found if first == second else [*found, "the charges differ"]


def _distance(call: Call, query: Values) -> float:
    """L2 distance of the two exact queries over the declared sensitivity; a mask has no query."""
    if not query:
        return 0.0
    parts = [(call.query[name].double() - query[name].double()).flatten() for name in query]
    return float(torch.cat(parts).norm()) / call.mechanism.sensitivity


def _copy(values: Values) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in values.items()}


def _shapes(values: Values) -> dict[str, tuple[int, ...]]:
    return {name: tuple(values[name].shape) for name in sorted(values)}


@dataclass(frozen=True)
class NeighbourPair:
    """Two encoded data sets that differ in one slot: a record of some kind, and the null record.

    Attributes:
        kind: `plain`, `extreme`, `empty` or `rare_class`.
        slot: the differing slot.
        data: with the record.
        neighbour: with the null record.
    """

    kind: str
    slot: int
    data: dict[str, Tensor] = field(repr=False)
    neighbour: dict[str, Tensor] = field(repr=False)


def neighbour_pairs(
    data: Values,
    *,
    slots: Sequence[int],
    rare_token: int,
    rare_label: int | None = None,
    tokens: str = "input_ids",
    masks: Sequence[str] = ("attention_mask", "loss_mask"),
    label: str = "label",
) -> Iterator[NeighbourPair]:
    """Pairs for each of `slots`: the record as it is, extreme, empty and of a rare class, each against null.

    Args:
        data: encoded rows (n, ...) with `valid` bool (n,).
        slots: which records to change.
        rare_token: an extreme record is this token, over and over, at maximal length.
        rare_label: the class of which there is hardly any other record; None leaves that kind out.
        tokens: name of the token ids (n, length).
        masks: names of masks (n, length), used where present.
        label: name of the labels (n,), used where present.
    """
    present = [name for name in masks if name in data]
    for slot in slots:
        neighbour = _changed(data, slot, {name: 0 for name in data})
        extreme = {tokens: rare_token, **dict.fromkeys(present, 1), "valid": 1}
        kinds: dict[str, Mapping[str, int]] = {"plain": {}, "extreme": extreme}
        kinds["empty"] = {**dict.fromkeys(present, 0), "valid": 1}
        if rare_label is not None and label in data:
            kinds["rare_class"] = {label: rare_label, "valid": 1}
        for kind, changes in kinds.items():
            changed = _changed(data, slot, changes)
            for name in present if kind == "empty" else ():
                changed[name][slot, 0] = 1  # attention needs something to look at
            yield NeighbourPair(kind, slot, changed, neighbour)


def unrelated_data(
    data: Values,
    *,
    rare_token: int,
    tokens: str = "input_ids",
    masks: Sequence[str] = ("attention_mask", "loss_mask"),
) -> dict[str, Tensor]:
    """Data of the same public shape in which every record is the extreme one, and every label the first."""
    changes = {tokens: rare_token, **dict.fromkeys(masks, 1), "valid": 1}
    return {name: torch.full_like(values, changes.get(name, 0)) for name, values in data.items()}


def _changed(data: Values, slot: int, changes: Mapping[str, int]) -> dict[str, Tensor]:
    copy = _copy(data)
    for name, value in changes.items():
        copy[name][slot] = value
    return copy
