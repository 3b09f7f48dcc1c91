"""What the commands do that look after a home and its machine."""

from __future__ import annotations

import json

from rich.table import Column, Table
from rich.text import Text

from understudy.errors import UnderstudyError
from understudy.flows.commands.terminal import console, show


def gc(*, as_json: bool) -> None:
    """`understudy gc`."""
    from understudy.settings import prepare_environment

    prepare_environment()
    from understudy.tasks.housekeeping import collect_garbage

    show(collect_garbage(), as_json=as_json, title="removed")


def purge(*, source: str, forget_rows: bool, as_json: bool) -> None:
    """`understudy purge`."""
    from understudy.settings import prepare_environment

    prepare_environment()
    from understudy.tasks.housekeeping import purge_source

    show(purge_source(source, forget_rows=forget_rows), as_json=as_json, title=f"purged {source}")


def deploy(*, as_json: bool) -> None:
    """`understudy deploy`."""
    from understudy.settings import prepare_environment

    prepare_environment()
    from understudy.flows.deploy import deploy as make

    show(make(), as_json=as_json, title="deployed")


def doctor(*, as_json: bool) -> None:
    """`understudy doctor`; exit code 1 when a check fails."""
    from understudy.flows.doctor import examine

    checks = examine()
    if as_json:
        console.print_json(json.dumps([check.model_dump() for check in checks]))
    else:
        table = Table("check", "state", Column("found", overflow="fold"))
        for check in checks:
            table.add_row(Text(check.name), "ok" if check.ok else "FAILED", Text(check.found))
        console.print(table)
    failed = [check.name for check in checks if not check.ok]
    if failed:
        raise UnderstudyError(f"doctor: {', '.join(failed)} failed; the table says what was found")
