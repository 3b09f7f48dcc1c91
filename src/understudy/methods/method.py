"""The methods that a run can name, and what the house asks of each one's module `planning`.

A method is a package; the house reaches it through the plain functions listed in `Planning`, and imports it only
when a run names it. Adding a method is one entry here, its config in `AnyConfig`, its tasks and its flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

from understudy.errors import InputError
from understudy.methods.conditional_generation.config import ConditionalGenerationConfig
from understudy.methods.gradient_matching.config import GradientMatchingConfig
from understudy.methods.preference_optimization.config import PreferenceOptimizationConfig
from understudy.privacy.statement import FLOATING_POINT, Access, MechanismFacts

if TYPE_CHECKING:
    from understudy.models.loading import LoadedModel
    from understudy.privacy.labels import Relation, Unit
    from understudy.privacy.queries import Queries
    from understudy.runs.split import RowKind

CONFIGS: Mapping[
    str, type[ConditionalGenerationConfig] | type[GradientMatchingConfig] | type[PreferenceOptimizationConfig]
] = {
    "conditional-generation": ConditionalGenerationConfig,
    "gradient-matching": GradientMatchingConfig,
    "preference-optimization": PreferenceOptimizationConfig,
}
AnyConfig = Annotated[
    ConditionalGenerationConfig | GradientMatchingConfig | PreferenceOptimizationConfig, Field(discriminator="method")
]


@dataclass(frozen=True)
class Protected:
    """What a run protects: the kind of its rows, and the unit and relation of its promise."""

    rows: RowKind
    unit: Unit
    relation: Relation


_LABELLED_EXAMPLES = Protected("labelled", "example", "replace_special")
_BY_VARIANT = {
    "federated": Protected("clients", "client", "add_or_remove_one"),
    "central": Protected("texts", "example", "replace_special"),
    "central_conditional": _LABELLED_EXAMPLES,
}


def protected(config: AnyConfig) -> Protected:
    """What a run with these settings protects."""
    if isinstance(config, PreferenceOptimizationConfig):
        return _BY_VARIANT[config.variant]
    return _LABELLED_EXAMPLES


class ChargedPlan(Protocol):
    """What every method's plan has."""

    @property
    def queries(self) -> Queries:
        """Everything that private rows will be asked, to be charged once."""
        ...


@dataclass(frozen=True)
class MethodFacts:
    """What a method says of one run in its privacy statement and plan; public values only.

    Attributes:
        mechanisms: every noised query.
        contributions: how the contribution of one unit is bounded.
        released: what leaves, in words, the released artifact apart.
        accesses: every access to private rows but admission's and those of `evaluations`.
        choices: how settings and checkpoints were chosen.
        declared_public: name -> value, besides n and the label list.
        plan: further lines of the dry run, name -> text or number.
        warnings: what the user should know before paying, such as noise that drowns the signal.
        heuristics: steps of the privacy argument that are not proven.
        evaluations: tasks that measure the result on real rows, for internal figures.
        trust: who sees raw rows and must be trusted.
        against: against whom the promise holds.
        floating_point: what floats do to the proof.
    """

    mechanisms: tuple[MechanismFacts, ...]
    contributions: str
    released: tuple[str, ...]
    accesses: tuple[Access, ...]
    choices: str
    declared_public: Mapping[str, Any]
    plan: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    heuristics: tuple[str, ...] = ()
    evaluations: tuple[str, ...] = ("evaluate",)
    trust: str = "Whoever runs the client zone sees the rows; no other party does."
    against: str = "Everyone who sees only what is exported: the synthetic rows, the model and this statement."
    floating_point: str = FLOATING_POINT


class Planning(Protocol):
    """The module `planning` of a method package."""

    def charged_settings(self, config: Any) -> Any:
        """The settings that private rows meet (ADR 0005): what else is changed charges nothing."""
        ...

    def check_model(self, config: Any, label_names: Sequence[str]) -> LoadedModel:
        """Load the base model and refuse, before anything is charged, what would fail later."""
        ...

    def calibrated_plan(self, config: Any, *, n: int, epsilon: float, delta: float) -> Any:
        """A `ChargedPlan`, with earlier calibrations of the same public values reused."""
        ...

    def method_facts(self, config: Any, plan: Any, *, n: int, label_names: Sequence[str]) -> MethodFacts:
        """What the run says about itself before it runs; the model may be loaded, no private row is read."""
        ...

    def estimate(self, config: Any, plan: Any, *, n: int, label_names: tuple[str, ...]) -> dict[str, Any]:
        """Expected time and memory, measured on made-up rows."""
        ...

    def report_facts(self, config: Any) -> dict[str, str]:
        """A few settings that the report names."""
        ...


def planning(method: str) -> Planning:
    """The module `planning` of a method.

    Raises:
        InputError: no such method.
    """
    check_method(method)
    module: Any = import_module(f"understudy.methods.{method.replace('-', '_')}.method")
    found: Planning = module
    return found


def check_method(method: str) -> str:
    """Return the name of a method.

    Raises:
        InputError: no such method.
    """
    if method not in CONFIGS:
        raise InputError(f"method={method!r}: expected one of {', '.join(CONFIGS)}")
    return method
