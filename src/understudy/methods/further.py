"""What a method draws further rows from: the exported model and the settings of the run that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from understudy.errors import InputError
from understudy.frozen import MethodSettings
from understudy.progress import Progress

C = TypeVar("C", bound=MethodSettings)


@dataclass(frozen=True)
class FurtherDraw:
    """Further rows that are wanted of a run; everything in it is public or released.

    Attributes:
        folder: the run's export folder.
        record: `internal/run.json` of the run, where it is at hand.
        samples: rows wanted.
        seed_step: added to the run's public seed.
        progress: to be called with (rows drawn, rows); None tells nobody.
    """

    folder: Path
    record: dict[str, Any] | None
    samples: int
    seed_step: int
    progress: Progress | None = None

    @property
    def model(self) -> Path:
        """Folder of the released model.

        Raises:
            InputError: there is none.
        """
        place = self.folder / "model"
        if not place.is_dir():
            raise InputError(f"--from {self.folder}: expected a folder `model` in it, found none")
        return place

    def recorded(self, settings: type[C], *, tells: str) -> tuple[C, tuple[str, ...]]:
        """The run's settings, for this draw, and its label names.

        Args:
            settings: the class of the method's settings.
            tells: what the record is needed for, in words.

        Raises:
            InputError: there is no record of the run, or its settings are none of today's.
        """
        if self.record is None or not {"config", "label_names"} <= self.record.keys():
            raise InputError(
                f"--from {self.folder}: expected internal/run.json beside export/, for it {tells}; name the run's own "
                "--out folder, or repeat its `understudy run` command with a larger --samples, which charges nothing"
            )
        return self.redrawn(self.settings_in(self.record, settings)), tuple(self.record["label_names"])

    def settings_in(self, record: Mapping[str, Any], settings: type[C]) -> C:
        """The settings that a record of the run holds.

        Raises:
            InputError: they are damaged, or of another version.
        """
        try:
            return settings.model_validate(record.get("config"))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = ".".join(str(part) for part in ("config", *first["loc"]))
        raise InputError(
            f"--from {self.folder}: expected the run's settings in internal/run.json beside export/, found {name}: "
            f"{first['msg']}; the file is damaged or of another version of Understudy: restore it, or repeat the run's "
            "`understudy run` command, which writes it anew"
        )

    def redrawn(self, config: C) -> C:
        """The settings with the rows and the seed of this draw."""
        seed = (config.public_seed + self.seed_step) % 2**63
        return config.model_copy(update={"samples": self.samples, "public_seed": seed})
