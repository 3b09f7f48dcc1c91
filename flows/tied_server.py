"""Prefect's temporary server, tied to the process that it was started for.

Prefect's own is left behind, with the home's database, when that process is killed. And it is in the same process
group: Ctrl-C in a terminal ended it beside the run, which could not tell it any more that it was interrupted, and stood
there as Running for ever. This one has a session of its own, where no such signal reaches it, and ends as soon as the
process has ended, however that was.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from subprocess import Popen
from typing import Any

import uvicorn
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

# What Prefect sets for its own.
_ENVIRONMENT = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
_APP = "prefect.server.api.server:create_app"


class TiedServer(SubprocessASGIServer):  # type: ignore[misc]
    """The temporary server of this process; Prefect finds it in the place of its own."""

    def _run_uvicorn_command(self) -> Popen[Any]:
        # Nobody ever writes. The kernel closes the other end with this process, and the server reads the end of it.
        read, self._held = os.pipe()
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        try:
            return Popen(
                [sys.executable, "-m", __name__, str(self.port)],
                env={**os.environ, **_ENVIRONMENT, **settings},
                stdin=read,
                start_new_session=True,
            )
        finally:
            os.close(read)


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
