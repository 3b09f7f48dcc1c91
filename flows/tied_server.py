"""Prefect's temporary server, tied to the process that it was started for.

Prefect's own is left behind, with the home's database, when that process is killed. And it is in the same process
group: Ctrl-C in a terminal ended it beside the run, which could not tell it any more that it was interrupted, and stood
there as Running for ever. This one has a session of its own, where no such signal reaches it, and ends as soon as the
process has ended, however that was.

Where Prefect's start fails, as on a full disk, Prefect tries again for minutes and shows a page of errors each time.
This one tries a second time, and then tells what the server said last.

Its database is that of `prefect server start` in the same home, with the automations that `understudy deploy` made
there. They wait for heartbeats, which runs send to a server of the user's alone, and marked a run that computed Crashed
after 90 seconds. So this server follows no automation.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections import deque
from subprocess import Popen
from typing import Any

import uvicorn
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_HOME, get_current_settings

from understudy.errors import UnderstudyError

# What Prefect sets for its own, and no triggers: see the head of the module.
_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "0",
}
_APP = "prefect.server.api.server:create_app"
_ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception)\b.*:")
_STARTS = 2  # a database that another server has just left may be locked for a moment


class TiedServer(SubprocessASGIServer):  # type: ignore[misc]
    """The temporary server of this process; Prefect finds it in the place of its own."""

    def start(self, timeout: int | None = None) -> None:
        """Start it, unless it has been started.

        Raises:
            UnderstudyError: it ends instead of answering, or does not answer in time; with what it said last.
        """
        if self.running:
            return
        self._starts, self._said, self._shows = 0, deque[str](maxlen=50), False
        try:
            super().start(timeout)
        except RuntimeError as error:
            raise self._failed(str(error)) from None
        self._shows = True

    def _failed(self, told: str) -> UnderstudyError:
        """What kept it from starting: the last error that it named, or what Prefect tells of it."""
        errors = [line.strip() for line in self._said if _ERROR.match(line)]
        return UnderstudyError(
            f"Prefect's temporary server: expected it to start on its database in {PREFECT_HOME.value()}, found: "
            f"{errors[-1] if errors else told}; fix that and run the same command again"
        )

    def _relay(self, end: int) -> None:
        """Keep what the server says while it starts, and show what it says later."""
        with open(end, errors="backslashreplace") as lines:
            for line in lines:
                if self._shows:
                    sys.stderr.write(line)
                else:
                    self._said.append(line)

    def _run_uvicorn_command(self) -> Popen[Any]:
        if self._starts == _STARTS:
            raise RuntimeError(f"it ended {_STARTS} times before it answered")
        self._starts += 1
        # Nobody ever writes. The kernel closes the other end with this process, and the server reads the end of it.
        read, self._held = os.pipe()
        # Not by Popen: Prefect would read to the end of it, also of a server that lives.
        says, write = os.pipe()
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        try:
            return Popen(
                # Not -m alone: a user's file of the name of a library, in the working directory, would be imported.
                [sys.executable, "-P", "-m", __name__, str(self.port)],
                env={**os.environ, **_ENVIRONMENT, **settings},
                stdin=read,
                stderr=write,
                start_new_session=True,
            )
        finally:
            os.close(read)
            os.close(write)
            threading.Thread(target=self._relay, args=(says,), name="server-says", daemon=True).start()


def serve(port: int) -> None:
    """Be the server until the process at the other end of the standard input has ended."""
    threading.Thread(target=_end_with_the_other, name="starter-watch", daemon=True).start()
    uvicorn.run(_APP, factory=True, host="127.0.0.1", port=port, log_level="error", lifespan="on")


def _end_with_the_other() -> None:
    # Not through `sys.stdin`, which an interpreter that ends waits for.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
