"""One MLflow database for the flows of a process, emptied before each: a new one compiles every statement anew."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class TrackingStore:
    """A database that has its tables and the experiment.

    Attributes:
        path: of its file.
    """

    path: Path

    @property
    def uri(self) -> str:
        """As MLflow names it."""
        return f"sqlite:///{self.path}"

    @cached_property
    def _filled_by_runs(self) -> list[str]:
        """The tables that are empty as long as nothing has run."""
        with closing(sqlite3.connect(self.path)) as connection:
            names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
            return [name for name in names if not connection.execute(f'select 1 from "{name}" limit 1').fetchone()]

    def empty(self) -> None:
        """Forget every run."""
        with closing(sqlite3.connect(self.path, timeout=60)) as connection:
            for name in self._filled_by_runs:
                connection.execute(f'delete from "{name}"')
            connection.commit()
