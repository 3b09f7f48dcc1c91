"""Prefect's temporary server, which a run has that was told of no other.

Its database is made on first use, and two servers that make it at a time fail over each other's tables. So one run
after another starts its server.
"""

from __future__ import annotations

from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_SERVER_EPHEMERAL_ENABLED

from understudy.locks import locked_folder


def start_in_turn() -> None:
    """Start the temporary server of this process, which its flow finds; where there is another server, nothing."""
    if PREFECT_API_URL.value() or not PREFECT_SERVER_EPHEMERAL_ENABLED.value():
        return
    # All of Prefect's server, which whoever has one elsewhere need not wait for.
    from prefect.server.api.server import SubprocessASGIServer

    home = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True)
    with locked_folder(home):
        SubprocessASGIServer().start()
