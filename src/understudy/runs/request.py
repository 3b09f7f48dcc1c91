"""What a user asks of a run, before anything is read: public values only.

The same object is the parameter of the Prefect flow, so the Prefect UI draws its form from it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from understudy.errors import InputError
from understudy.quantities import LEAST_DELTA, Words

Profile = Literal["tiny", "paper"]
# Tried: below, PLD finds no noise for long trainings; at 100 a calibration takes half a minute, at 300 minutes, and
# at 1e5 it never ends (docs/privacy.md).
LEAST_EPSILON: Final = 1e-4
MOST_EPSILON: Final = 100.0
# What Linux takes as a path and as one name in it.
LONGEST_TEXT: Final = 4_096
LONGEST_NAME: Final = 255
LONGEST_ABOUT: Final = 200
# Fields of requests whose values a refusal repeats.
_PUBLIC_NUMBERS: Final = frozenset({"canaries", "samples", "seed", "units"})
R = TypeVar("R", bound=BaseModel)


def _number_of(given: object) -> object:
    """Epsilon as a form or JSON has it, which knows no infinite number: in quotes."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        said = f'expected a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g}, or "inf" for no noise'
    raise ValueError(said)


# Prefect checks parameters against the schema and refuses in words of its own, so any text is left to ours.
_AS_JSON = WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})
Epsilon = Annotated[float, BeforeValidator(_number_of), _AS_JSON]


def _with_text_values(given: object) -> object:
    """Label names as Python writes them: whole numbers and booleans need no quotes, and a list holds the values."""
    pairs: list[tuple[object, object]]
    match given:
        case None:
            return None
        case Mapping():
            pairs = list(given.items())
        case list() | tuple():
            pairs = [(name, str(name)) for name in given]
        case _:
            pairs = [(None, None)]
    if not all(isinstance(value, str | Integral) for value, _ in pairs):
        raise ValueError(
            "expected value in the label column -> name, or a list of values that are the names, with values that are "
            'text, whole numbers or booleans; in Python for example {0: "negative", 1: "positive"}'
        )
    named = {str(value): name for value, name in pairs}
    if len(named) != len(pairs):
        raise ValueError("expected each value once, found one twice, perhaps as a number and as text; leave one out")
    return named


# As Prefect checks what a deployment is given: the list too.
_NAMES_AS_JSON = WithJsonSchema(
    {
        "anyOf": [
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "array", "items": {"type": ["string", "integer", "boolean"]}},
        ]
    }
)
# Value in the label column -> its public name.
LabelNames = Annotated[dict[str, str], BeforeValidator(_with_text_values), _NAMES_AS_JSON]


def _check_line(value: str) -> str:
    """One line with room for a path or a name, not for rows; the message does not repeat it."""
    if not value.strip():
        raise ValueError("expected a path or a name, found an empty text")
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"expected a path or a name of at most {LONGEST_TEXT} characters, found {len(value)}")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in value):
        raise ValueError("expected a path or a name in one line, found a line break or a control character")
    return value


def _check_place(value: str) -> str:
    """One line that a path can be: so a table, a folder or a model is named."""
    _check_line(value)
    if any(len(part.encode()) > LONGEST_NAME for part in value.split("/")):
        raise ValueError(f"expected names of at most {LONGEST_NAME} bytes between the slashes of a path")
    try:
        Path(value).expanduser()
    except RuntimeError:
        raise ValueError("expected the home folder of a user that there is behind '~'") from None
    return value


Name = Annotated[str, AfterValidator(_check_line)]
Place = Annotated[str, AfterValidator(_check_place)]

_AS_FIELDS: Final[Mapping[str, str]] = {}
_PLAIN_COLUMNS: Final = frozenset({"text", "texts", "content", "document"})


class Budget(BaseModel):
    """The whole (epsilon, delta) that every run on one source may spend together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float = Field(description="Total epsilon of the source; > 0, finite.")
    delta: float = Field(description="Total delta of the source; between 0 and 1, exclusive.")

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if not (0 < self.epsilon < math.inf) or not 0 < self.delta < 1:
            raise ValueError(
                f"expected a budget with 0 < epsilon < inf and 0 < delta < 1, found {self.epsilon:g},{self.delta:g}"
            )
        return self


def parse_budget(text: str) -> Budget:
    """Read `E,D`, for example `8,1e-5`.

    Raises:
        InputError: when the text is not two numbers in range.
    """
    try:
        epsilon, delta = (float(part) for part in text.split(","))
        return Budget(epsilon=epsilon, delta=delta)
    except ValueError as error:
        raise InputError(
            f"--budget {text}: expected EPSILON,DELTA with 0 < epsilon < inf and 0 < delta < 1, for example 8,1e-5"
        ) from error


class RunRequest(BaseModel):
    """One run of a method on a private table. Public values only.

    It is shown, logged and stored, so no field has room for rows, and a refusal names the field, never the value, but
    for public numbers.
    """

    # Infinity has no JSON number; as a string it survives Prefect's parameters.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", hide_input_in_errors=True)

    data: Place = Field(
        description="CSV, JSONL or Parquet file, hub:OWNER/NAME of the Hugging Face hub, or sample:NAME. Read in "
        "the client zone; an absolute path in the run of a deployment."
    )
    source: Name = Field(min_length=1, description="Name under which these rows keep their budget.")
    out: Place = Field(
        description="Folder for export/ (safe to hand over) and internal/ (not private); an absolute path in the run "
        "of a deployment."
    )
    epsilon: Epsilon | None = Field(
        default=None,
        description='Epsilon of this run, 0.0001 to 100. "inf": private output that never leaves. None: of a method '
        "that runs without one, whose output is as private as the rows.",
    )
    delta: float | None = Field(default=None, description="Delta, below 1/n. Default 1/(n ln n).")
    budget: Budget | None = Field(
        default=None,
        description="Total budget, read on a source's first use; default this run's epsilon, delta.",
    )
    text_column: Name = Field(default="text", description="Column with the texts.")
    label_column: Name = Field(default="label", description="Column with the labels: text, whole numbers or booleans.")
    client_column: Name = Field(
        default="client_id", description="Column that says whose text it is, for methods that protect clients."
    )
    instruction_column: Name = Field(
        default="instruction", description="Column with the instructions, for methods that take pairs."
    )
    response_column: Name = Field(default="response", description="Column with the responses.")
    system_column: Name | None = Field(default=None, description="Column with a system text for each pair, if any.")
    label_names: LabelNames | None = Field(
        default=None,
        max_length=1_000,
        description="Value in the label column -> name used in prompts; declared public.",
    )
    labels_from_data: bool = Field(
        default=False, description="Read the label list from the rows, which publishes it without any guarantee."
    )
    about: Words | None = Field(
        default=None,
        description="Public words that say what the rows are, for prompts, such as one-sentence film reviews; one "
        "line. Default: by the names of source and column.",
    )
    units: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Number of rows, or of clients, or an upper bound; becomes public. Default: as registered, else "
        "counted on first use.",
    )
    test: Place | None = Field(
        default=None, description="Real rows for measuring only. Default: about one unit in ten is held out."
    )
    profile: Profile = Field(default="tiny", description="tiny: two cores, minutes. paper: the paper's sizes.")
    overrides: tuple[Annotated[str, Field(max_length=LONGEST_TEXT)], ...] = Field(
        default=(), max_length=200, description="section.key=value over the profile."
    )
    model: Place | None = Field(default=None, description="Base model: shipped name, folder or hub id.")
    samples: int | None = Field(default=None, description="Number of synthetic texts; >= 1.")
    share_real_rows: bool = Field(
        default=False,
        description="Export the output of a run without an epsilon, real rows in it, though nothing is promised.",
    )
    accept_new_charge: bool = Field(
        default=False, description="Pay again when the code or the environment changed since the charge."
    )


def words_about(request: RunRequest) -> str:
    """Public words for prompts: those given, or the names of source and column.

    >>> words_about(RunRequest(data="d.csv", source="film-reviews_2024", out="o", epsilon=1))
    'texts from film reviews 2024'
    """
    if request.about is not None:
        return request.about.strip()
    column = _as_words(request.text_column)
    named = "texts" if column.lower() in _PLAIN_COLUMNS else f"texts ({column})"
    return f"{named} from {_as_words(request.source)}"[:LONGEST_ABOUT]


def _as_words(name: str) -> str:
    return " ".join(re.findall(r"[^\W_]+", name)) or "a table"


def request_of(fields: Mapping[str, Any]) -> RunRequest:
    """`checked_request` of a run."""
    return checked_request(RunRequest, fields)


def checked_request(kind: type[R], fields: Mapping[str, Any], *, options: Mapping[str, str] = _AS_FIELDS) -> R:
    """The request of this kind with these fields.

    Args:
        kind: of request.
        fields: by name.
        options: field -> how a user names it, where that is not the option of the field's name.

    Raises:
        InputError: a field is missing, unknown or malformed; named without its value, which may be private, unless it
            is a public number.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        place, given, said = first_fault(error)
    option = f"--{place.replace('_', '-')}" if place.isidentifier() else "request"
    raise InputError(f"{options.get(place, option)}{given}: {said}")


def first_fault(error: ValidationError) -> tuple[str, str, str]:
    """The field that is wrong first, its value after a space, and what is wrong with it.

    The value is empty where it may be private: wherever it is no number, or the field none of public numbers.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    place, value = str(first["loc"][0]) if first["loc"] else "", first["input"]
    given = f" {value}" if place in _PUBLIC_NUMBERS and isinstance(value, int | float) else ""
    return place, given, first["msg"].removeprefix("Value error, ")


def check_epsilon(epsilon: float) -> float:
    """Return `epsilon` when noise can be calibrated to it (inf allowed).

    Raises:
        InputError: when it is nan, or outside of [`LEAST_EPSILON`, `MOST_EPSILON`].
    """
    if math.isnan(epsilon) or epsilon <= 0:
        raise InputError(f"--epsilon {epsilon:g}: expected a number above 0, or inf for output that stays private")
    if epsilon < LEAST_EPSILON:
        raise InputError(
            f"--epsilon {epsilon:g}: expected at least {LEAST_EPSILON:g}, below which the noise leaves nothing of any "
            "data; common values are 0.1 to 10"
        )
    if MOST_EPSILON < epsilon < math.inf:
        raise InputError(
            f"--epsilon {epsilon:g}: expected at most {MOST_EPSILON:g}, above which nothing is protected; common "
            "values are 0.1 to 10, and inf adds no noise and keeps the output private"
        )
    return epsilon


def check_delta(delta: float, *, n: int) -> float:
    """Return `delta` when it is below 1/n and not so small that rounding in the accounting would count.

    Raises:
        InputError: when it is out of range; delta >= 1/n would allow a mechanism that publishes one row.
    """
    if not LEAST_DELTA <= delta < 1 / n:
        raise InputError(
            f"--delta {delta:g}: expected {LEAST_DELTA:g} <= delta < 1/n = {1 / n:.3g} for n={n} rows; leave it out "
            "for 1/(n ln n)"
        )
    return delta
