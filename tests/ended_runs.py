"""What tests look at when a run of the command line has ended, and what was logged while it ran."""

import json
import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """What one run of the command line left; `tasks` are those that computed, where a test watched them.

    `words` are its options, where a test goes on from them.
    """

    home: Path
    out: Path
    code: int
    said: str
    log: str
    tasks: tuple[object, ...] = ()
    words: tuple[object, ...] = ()

    def statement(self) -> dict:
        return json.loads((self.out / "export/statement.json").read_text())

    def without_names(self, text: str) -> str:
        """Text without what differs between any two runs: folders, random ids, digests of noise, times."""
        text = text.replace(str(self.home.parent), "FOLDER").replace(self.home.parent.name, "FOLDER")
        text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)?", "TIME", text)
        return re.sub(r"(?<![.0-9a-f])[0-9a-f]{16,64}(?![0-9a-f])", "ID", text)


@contextmanager
def everything_logged():
    """A list that every record of every logger is written to."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel("DEBUG")
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
