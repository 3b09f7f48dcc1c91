"""The Prefect server answers, and has a limit on the tasks that use a GPU."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from understudy.addresses import public_address
from understudy.errors import InputError
from understudy.runs.checks.answers import PATIENCE_S, said
from understudy.settings import prefect_setting

if TYPE_CHECKING:
    import httpx

# A Prefect server that many runs ask at once is slow to answer; its own client waits as long.
BUSY_S = 60.0
_BUSY = (429, 502, 503)  # what it answers then, and its client asks again after


def prefect_server() -> str:
    """The Prefect server answers, where one is configured."""
    url = prefect_setting("PREFECT_API_URL")
    if url is None:
        return "no server: a temporary one is started for each run"
    answer = _ask(url, "health")
    if answer.status_code in (401, 403) or answer.status_code >= 500:
        raise InputError(
            f"PREFECT_API_URL={public_address(url)}: expected a Prefect server that lets us in, found status "
            f"{answer.status_code}; correct PREFECT_API_KEY or PREFECT_API_AUTH_STRING, or fix the server"
        )
    return f"server {public_address(url)}"


def gpu_limit(url: str) -> str:
    """The server has a limit on how many tasks use a GPU at once, and it is in force."""
    answer = _ask(url, "v2/concurrency_limits/gpu")
    if answer.status_code not in (200, 404):
        raise InputError(
            f"expected the Prefect server {public_address(url)} to tell of its concurrency limit 'gpu', found status "
            f"{answer.status_code}; see to the server and to PREFECT_API_KEY, and run again"
        )
    limit = answer.json() if answer.status_code == 200 else {}
    if limit.get("limit", 0) < 1 or not limit.get("active", False):
        command = "gcl create gpu --limit 1" if answer.status_code == 404 else "gcl update gpu --limit 1 --enable"
        raise InputError(
            f"expected the concurrency limit 'gpu' on the Prefect server {public_address(url)}, found "
            f"{limit or 'none'}; make it there: "
            f"PREFECT_API_URL={public_address(url)} prefect {command}"
        )
    return f"concurrency limit gpu of {public_address(url)}: {limit['limit']}"


def _ask(url: str, path: str) -> httpx.Response:
    import httpx

    key, auth = prefect_setting("PREFECT_API_KEY"), prefect_setting("PREFECT_API_AUTH_STRING")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    login = httpx.BasicAuth(*auth.split(":", 1)) if auth and ":" in auth else None
    timeout, until = httpx.Timeout(PATIENCE_S / 3, read=BUSY_S), time.monotonic() + BUSY_S
    try:
        while True:
            answer = httpx.get(f"{url.rstrip('/')}/{path}", headers=headers, auth=login, timeout=timeout)
            if answer.status_code not in _BUSY or time.monotonic() > until:
                return answer
            time.sleep(1.0)
    except httpx.ReadTimeout:
        raise InputError(
            f"PREFECT_API_URL={public_address(url)}: expected a Prefect server that answers, found none within "
            f"{BUSY_S:g} s (timed out); let fewer runs start at once (prefect work-pool set-concurrency-limit client "
            "2), or start the server anew, and run again"
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(
            f"PREFECT_API_URL={public_address(url)}: expected a Prefect server that answers, found {said(error)}; "
            "start it (prefect server start), or unset PREFECT_API_URL to run without one"
        ) from None
