"""The options of a run on the command line, which every command that makes runs takes; imports nothing heavy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from understudy.methods.registry import names


class Profile(StrEnum):
    """Sizes: `tiny` for two cores, `paper` for the paper's."""

    tiny = "tiny"
    paper = "paper"


Method = Annotated[
    str,
    typer.Argument(help=f"How the synthetic text is made: {', '.join(names())}.", metavar="METHOD", show_default=False),
]
TextColumn = Annotated[str, typer.Option(help="Column with the texts.")]
LabelColumn = Annotated[str, typer.Option(help="Column with the labels.")]
LabelNames = Annotated[str | None, typer.Option(help="VALUE=NAME,... of the label column, or JSON.")]
Epsilon = Annotated[
    float | None,
    typer.Option(help="Epsilon of this run, 1e-4 to 100; inf: no noise, nothing is exported.", show_default=False),
]
LabelsFromData = Annotated[
    bool, typer.Option("--labels-from-data", help="Publish the labels found in the rows; no epsilon covers them.")
]
About = Annotated[
    str | None, typer.Option(help="Public words that say what the rows are, for prompts.", metavar="WORDS")
]
Units = Annotated[int | None, typer.Option(help="Number of rows, or clients, or an upper bound; becomes public.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting of the method, over the profile; may be given again for another one.",
        metavar="SECTION.KEY=VALUE",
    ),
]
ShareRealRows = Annotated[
    bool,
    typer.Option("--share-real-rows", help="Export the output of a run without --epsilon, though it holds real rows."),
]


def request_options(  # noqa: PLR0913 - one parameter per option
    data: Annotated[str, typer.Option(help="CSV, JSONL or Parquet file, hub:OWNER/NAME, or sample:NAME.")],
    out: Annotated[str, typer.Option(help="Folder of the results; each run has export/ and internal/.")],
    epsilon: Epsilon = None,
    source: Annotated[str | None, typer.Option(help="Name under which these rows keep their budget; needed.")] = None,
    budget: Annotated[str | None, typer.Option(help="EPSILON,DELTA of the source, on first use.")] = None,
    delta: Annotated[float | None, typer.Option(help="Below 1/n; default 1/(n ln n).")] = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    label_names: LabelNames = None,
    labels_from_data: LabelsFromData = False,
    client_column: Annotated[str, typer.Option(help="Column that says whose text it is.")] = "client_id",
    instruction_column: Annotated[str, typer.Option(help="Column with the instructions.")] = "instruction",
    response_column: Annotated[str, typer.Option(help="Column with the responses.")] = "response",
    system_column: Annotated[str | None, typer.Option(help="Column with a system text for each pair.")] = None,
    about: About = None,
    units: Units = None,
    test: Annotated[
        str | None, typer.Option(help="Other real rows, for measuring only; default: about one in ten is held out.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Base model: name (see models list), folder or hub id.")] = None,
    profile: Annotated[Profile, typer.Option(help="Sizes of the run.")] = Profile.tiny,
    overrides: Overrides = None,
    samples: Annotated[int | None, typer.Option(help="Number of synthetic rows.")] = None,
    share_real_rows: ShareRealRows = False,
    accept_new_charge: Annotated[
        bool,
        typer.Option("--accept-new-charge", help="Charge the source again after a change of code or machine."),
    ] = False,
) -> dict[str, Any]:
    """The options as fields of a `RunRequest`, by name."""
    # Every parameter is a field of the request, under the same name.
    return {**locals(), "profile": profile.value, "overrides": tuple(overrides or ())}


def takes_request(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command all options of `request_options` but some, before its own; it is handed them as `options`.

    Args:
        without: names of optional parameters that the command does not take, or takes in a way of its own.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = {**get_type_hints(request_options, include_extras=True), **get_type_hints(command, include_extras=True)}
        own = dict(inspect.signature(command).parameters)
        del own["options"]
        arguments = [p for p in own.values() if p.default is inspect.Parameter.empty]
        shared = [p for p in inspect.signature(request_options).parameters.values() if p.name not in without]
        asked = [p for p in own.values() if p.default is not inspect.Parameter.empty]

        @wraps(command)
        def called(**given: Any) -> None:
            named = {parameter.name: given.pop(parameter.name) for parameter in shared}
            command(**given, options=request_options(**named))

        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            for parameter in (*arguments, *shared, *asked)
        ]
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return decorate
