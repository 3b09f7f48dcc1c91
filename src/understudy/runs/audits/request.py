"""What a user asks of an audit, before anything is read: public values only; the Prefect UI draws its form from it."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from understudy.data.readers import SAMPLE
from understudy.errors import InputError
from understudy.runs.request import RunRequest, first_fault

# With fewer, all coins but one may fall alike, and hardly any epsilon could be told from 0.
LEAST_CANARIES = 20
MOST_CANARIES = 10_000
# Enough to tell an epsilon of about 0.7, and no more than a fifth of what there is.
USUAL_CANARIES, USUAL_SHARE = 100, 5


class AuditRequest(BaseModel):
    """An audit of a run: the run itself on rows with canaries in them, beside its two controls."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", hide_input_in_errors=True)

    method: str = Field(min_length=1, max_length=200, description="Method that is audited.")
    run: RunRequest = Field(
        description="The run that is audited. Its source is charged its epsilon, and its out is the audit's folder."
    )
    canaries: int | None = Field(
        default=None,
        ge=LEAST_CANARIES,
        le=MOST_CANARIES,
        description=f"Number of canaries. Default {USUAL_CANARIES}, or a fifth of the units where these are fewer.",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**31, description="Public seed of the canaries: another one gives other words and coins."
    )
    insist: bool = Field(
        default=False,
        description="Charge the run and attack it even where the attack misses the run without noise, so that its "
        "finding nothing says nothing.",
    )

    public_rows: bool = Field(
        default=False,
        description="The rows are public: what the audit finds may stand in the statements of later runs of this "
        "method and model. Rows of a shipped sample are.",
    )

    @property
    def is_of_public_rows(self) -> bool:
        """Whether what is found tells of nobody."""
        return self.public_rows or self.run.data.startswith(SAMPLE)

    @field_validator("run")
    @classmethod
    def _check_run(cls, run: RunRequest) -> RunRequest:
        if run.epsilon is None or math.isinf(run.epsilon):
            raise ValueError(
                "--epsilon: expected the finite epsilon whose promise is audited, found "
                f"{'none' if run.epsilon is None else 'inf'}; the controls run at inf by themselves"
            )
        if run.labels_from_data:
            raise ValueError("--labels-from-data: expected declared labels in an audit; give --label-names")
        if run.share_real_rows:
            raise ValueError("--share-real-rows: an audit hands nothing over; leave it out")
        return run


def audit_of(method: str, run: RunRequest, **options: Any) -> AuditRequest:
    """The request of an audit.

    Args:
        method: that is audited.
        run: as asked for.
        **options: further fields of `AuditRequest`; None is the default.

    Raises:
        InputError: a value is out of bounds, or a run without a promise is to be audited.
    """
    from pydantic import ValidationError

    try:
        return AuditRequest(method=method, run=run, **options)
    except ValidationError as error:
        place, given, said = first_fault(error)
    raise InputError(said if place == "run" else f"--{place.replace('_', '-')}{given}: {said}")


def number_of_canaries(request: AuditRequest, *, units: int) -> int:
    """As asked for, or by the number of units.

    Args:
        request: of the audit.
        units: of the source; public.

    Raises:
        InputError: there are too few units for an audit.
    """
    if request.canaries is not None:
        return request.canaries
    number = min(USUAL_CANARIES, units // USUAL_SHARE)
    if number < LEAST_CANARIES:
        raise InputError(
            f"canaries: expected at least {LEAST_CANARIES * USUAL_SHARE} units, of which at most a fifth make room for "
            f"canaries, found {units}; bring more rows, or set --canaries"
        )
    return number
