"""What the framework knows of a method: one object of type `Method`, found in the registry.

Nothing else names a method. The command line's choices, the configs, the unit and relation of the promise, the list of
queries, the statement, the kind of artifact that a charge releases, `generate` and the report's sections are all asked
of this object. Its functions import what is heavy when they are called, and places are texts `package.module:name`, so
that a method is cheap to look up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from understudy.privacy.labels import Relation, Unit
from understudy.privacy.queries import Queries
from understudy.privacy.statement import FLOATING_POINT, Access, MechanismFacts, PretrainedModel

if TYPE_CHECKING:
    from understudy.data.tables import RowKind
    from understudy.models.loading import LoadedModel


class MethodConfig(Protocol):
    """What every method's config has; a frozen pydantic model, public values only."""

    @property
    def method(self) -> str:
        """Name of the method, a literal."""
        ...

    @property
    def model(self) -> str:
        """Base model: shipped name, folder or hub id."""
        ...

    @property
    def model_digest(self) -> str:
        """sha256 of the files of `model`; set by the run."""
        ...

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As of pydantic."""
        ...

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:
        """As of pydantic."""
        ...

    def model_dump_json(self) -> str:
        """As of pydantic."""
        ...


C = TypeVar("C", bound=MethodConfig)
C_contra = TypeVar("C_contra", bound=MethodConfig, contravariant=True)


@dataclass(frozen=True)
class Protected:
    """What a run protects: the kind of its rows, and the unit and relation of its promise."""

    rows: RowKind
    unit: Unit
    relation: Relation


LABELLED_EXAMPLES = Protected("labelled", "example", "replace_special")
INSTRUCTION_PAIRS = Protected("instructions", "example", "replace_special")


@dataclass(frozen=True)
class Promise:
    """What a run is charged for; public.

    Attributes:
        queries: everything that private rows are asked.
        n: declared number of units.
        epsilon: of the run; infinity means no noise, and an output that stays private.
        delta: of the run.
        label_names: every label; empty for rows without.
    """

    queries: Queries
    n: int
    epsilon: float
    delta: float
    label_names: tuple[str, ...] = ()


class Description(BaseModel):
    """What a method says of one run in its privacy statement and dry run; public values only.

    Attributes:
        mechanisms: every noised query.
        contributions: how the contribution of one unit is bounded.
        released: what leaves, in words, the released artifact apart.
        accesses: every access to private rows but that of validation and those of `evaluations`.
        choices: how settings and checkpoints were chosen.
        declared_public: name -> value, besides n and the label list.
        dry_run: further lines of the dry run, name -> text or number.
        warnings: what the user should know before paying, such as noise that drowns the signal.
        heuristics: steps of the privacy argument that are not proven.
        pretrained_models: public models besides the base model that what is released depends on.
        evaluations: tasks that measure the result on real rows, for internal figures, with what each of them reads.
        trust: who sees raw rows and must be trusted.
        against: against whom the promise holds.
        floating_point: what floats do to the proof.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mechanisms: tuple[MechanismFacts, ...]
    contributions: str
    released: tuple[str, ...]
    accesses: tuple[Access, ...]
    choices: str
    declared_public: dict[str, Any]
    dry_run: dict[str, Any] = {}
    warnings: tuple[str, ...] = ()
    heuristics: tuple[str, ...] = ()
    pretrained_models: tuple[PretrainedModel, ...] = ()
    evaluations: tuple[Access, ...] = (Access.measuring("evaluate"),)
    trust: str = "Whoever runs the client zone sees the rows; no other party does."
    against: str = "Everyone who sees only what is exported: the synthetic rows, what was released and this statement."
    floating_point: str = FLOATING_POINT


def _as_they_are(config: C, _units: int, _label_names: Sequence[str], _epsilon: float) -> C:
    return config


def _no_tables(_: MethodConfig) -> Mapping[str, str]:
    return {}


class QueriesOf(Protocol[C_contra]):
    """Gives the list of queries of a run."""

    def __call__(self, config: C_contra, *, n: int, epsilon: float, delta: float) -> Queries:
        """Calibrate the noise to (epsilon, delta); earlier calibrations of the same public values are reused.

        Args:
            config: the charged settings.
            n: units of the source, null ones included; public.
            epsilon: target; infinity gives zero noise.
            delta: target.

        Raises:
            InputError: a value is out of range.
        """
        ...


@dataclass(frozen=True)
class Charging(Generic[C]):
    """What a run is charged for.

    Attributes:
        protects: settings -> what a run with them protects.
        settings: settings -> those that private rows meet (ADR 0005): what else is changed charges nothing.
        queries: gives everything that private rows will be asked: the one source of the event, of the statement's
            mechanisms, of the dry run and of what the mechanisms permit.
        releases: kind of the artifact that the charge pays for.
        by_epsilon: (settings, whether the run has an epsilon) -> the settings that go with it, or a ValueError; of a
            method that runs without an epsilon too. Such a run has no queries, spends nothing, and its output is
            private. None: the method always needs an epsilon.
    """

    protects: Callable[[C], Protected]
    settings: Callable[[C], C]
    queries: QueriesOf[C]
    releases: str
    by_epsilon: Callable[[C, bool], C] | None = None


@dataclass(frozen=True)
class Preparation(Generic[C]):
    """What is asked before anything is charged; no private row is read.

    Attributes:
        check_model: (settings, label names) -> the loaded base model; refuses what would fail later.
        describe: (settings, promise) -> what the run says about itself.
        estimate: (settings, promise) -> expected time and memory, measured on made-up rows.
        resolve: (settings, number of units, label names, epsilon) -> the settings with a value in place of every
            `auto`, from public facts that stay the same: the model's files and other settings. It is what is charged
            and cached.
        public_tables: settings -> name of a setting -> the public table that it names; none of them may be that of the
            private rows, or hold a copy of them.
    """

    check_model: Callable[[C, Sequence[str]], LoadedModel]
    describe: Callable[[C, Promise], Description]
    estimate: Callable[[C, Promise], dict[str, Any]]
    resolve: Callable[[C, int, Sequence[str], float], C] = _as_they_are
    public_tables: Callable[[C], Mapping[str, str]] = _no_tables


@dataclass(frozen=True)
class Reporting(Generic[C]):
    """What the report shows of this method alone.

    Attributes:
        facts: settings -> a few of them that the report names.
        sections: where the report's own sections of this method are, a function (metrics, statement) -> MethodSections;
            empty without.
    """

    facts: Callable[[C], dict[str, str]]
    sections: str = ""


@dataclass(frozen=True)
class Method(Generic[C]):
    """One method, as the framework sees it.

    Attributes:
        config: its settings: a `MethodSettings` with `method` and `samples`.
        charge: what a run is charged for.
        preparation: what is asked before the charge.
        report: what the report shows of it.
        flow: where its Prefect flow is, `package.module:function`; it takes a `RunRequest` and gives `Exported`.
        generate: where the function is that draws further rows from what a run exported, labels by name: it takes a
            `methods.further.FurtherDraw` and gives a table; empty where a run releases nothing to draw from.
        row_losses: where the function is that reads rows by what a run released: it takes a
            `methods.reading.RowsToRead` and gives `RowLosses`; empty where a run releases no language model. An audit
            attacks by it.
        left_over: where the function is that says what is left of released sums for whoever knows all rows but the
            canaries of an audit: it takes a `methods.reading.SumsToRead` and gives `auditing.known_rows.LeftOver`, or
            None where these settings release no sum that it knows; empty where a run never does.
    """

    config: type[C]
    charge: Charging[C]
    preparation: Preparation[C]
    report: Reporting[C]
    flow: str
    generate: str = ""
    row_losses: str = ""
    left_over: str = ""

    @property
    def name(self) -> str:
        """As on the command line, in lower case with dashes: the one value of the settings' `method`."""
        return self.config().method
