"""How figures are drawn: matplotlib's SVG backend, made fit to stand inside one HTML page.

Each figure is drawn 400 units wide, so that its 12-unit type stays legible on a phone. Colours are named, not
fixed: the page gives them through CSS variables and so one drawing serves light and dark. Groups differ in
marker shape as well as colour. Text stays text (selectable, read aloud), taken literally: no mathematics is
parsed from a label. The same numbers give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from understudy.errors import InputError
from understudy.reporting.text_formatting import MINUS, percent

WIDTH = 400

# Drawn with these colours, which are then replaced by the page's variables.
_COLOURS = {
    "ink": "#010203",
    "muted": "#040506",
    "grid": "#070809",
    "synthetic": "#0a0b0c",
    "real": "#0d0e0f",
    "prompt": "#101112",
    "paper": "#131415",
}
INK, MUTED, GRID, SYNTHETIC, REAL, PROMPT, PAPER = _COLOURS.values()

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "understudy",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    # Bundled with matplotlib, and wider than what pages use, so that the room it reserves always suffices.
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 1,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "xtick.major.size": 4,
    "patch.linewidth": 0,
}

_TAGS = {"svg", "title", "desc", "defs", "g", "path", "use", "text", "tspan", "clipPath", "rect"}
_ATTRIBUTES = {
    "id", "class", "style", "viewBox", "role", "aria-labelledby", "d", "x", "y", "width", "height", "transform", "href",
    "clip-path",
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """One figure of the report.

    Attributes:
        key: short identifier, part of the ids inside the SVG.
        title: heading or caption, plain text.
        alt: what the figure shows, in words and numbers; plain text.
        svg: an `<svg>` element for an HTML page, made by `draw`; trusted by the page as it is.
    """

    key: str
    title: str
    alt: str
    svg: str


@dataclass(frozen=True)
class Mark:
    """One row of a dot plot: a value, and its interval where there is one."""

    name: str
    value: float
    colour: str
    marker: str
    interval: tuple[float, float] | None = None


def draw(key: str, *, title: str, alt: str, height: int, paint: Callable[[Any], None]) -> Drawing:
    """Run `paint` on an empty figure and return it as inline SVG.

    Args:
        key: identifier, letters, digits and hyphens.
        title: of the figure.
        alt: the text alternative.
        height: in units; the width is 400.
        paint: receives a matplotlib `Figure`.
    """
    return Drawing(key=key, title=title, alt=alt, svg=_fit_for_page(painted(height, paint), key, title, alt))


def painted(height: int, paint: Callable[[Any], None]) -> str:
    """What `paint` draws on an empty figure, as matplotlib writes SVG: a document of its own, with ids of its own."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
        paint(figure)
        target = io.StringIO()
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        FigureCanvasSVG(figure).print_svg(target, metadata=metadata)
    return target.getvalue()


def dots(axes: Any, marks: Sequence[Mark], *, low: float, high: float, form: str | None = None) -> None:
    """A horizontal dot plot, first mark on top, each value written at the right edge."""
    for row, mark in enumerate(marks):
        y = len(marks) - 1 - row
        if mark.interval is not None:
            axes.plot(mark.interval, (y, y), color=mark.colour, linewidth=5, alpha=0.35, solid_capstyle="round")
        axes.plot(
            mark.value, y, marker=mark.marker, markersize=10, color=mark.colour, markeredgecolor=PAPER,
            markeredgewidth=1.5, clip_on=False, zorder=3,
        )  # fmt: skip
        axes.annotate(
            _write(mark.value, form),
            (1, y),
            xycoords=("axes fraction", "data"),
            xytext=(10, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
        )
    lowest = min([low, high - 0.1, *(m.interval[0] for m in marks if m.interval), *(m.value for m in marks)])
    room = 0.04 * (high - lowest)
    axes.set_xlim(lowest - (room if lowest != 0 else 0), high)
    axes.set_ylim(-0.6, len(marks) - 0.4)
    axes.set_yticks(range(len(marks)), [mark.name for mark in reversed(marks)])
    axes.grid(axis="x")
    axes.locator_params(axis="x", nbins=5)
    if form is None:
        percent_axis(axes.xaxis)


def line_of_chance(axes: Any, chance: float) -> None:
    """A thin dashed line at what guessing reaches, behind the marks."""
    axes.axvline(chance, color=MUTED, linewidth=1, linestyle=(0, (3, 3)), zorder=1)


def beside_chance(
    key: str, marks: Sequence[Mark], *, title: str, across: str, chance: float, form: str | None = None
) -> Drawing:
    """A dot plot from 0 to 1 with a line where chance lies, of what an attack reaches.

    Args:
        key: as of `draw`, as is the title.
        marks: first on top.
        title: of the figure.
        across: what the axis says.
        chance: what guessing reaches.
        form: of the values; None for per cent.
    """

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_xlabel(across)
        line_of_chance(axes, chance)
        dots(axes, marks, low=0.0, high=1.0, form=form)

    return draw(key, title=title, alt=say(marks, form), height=70 + 40 * len(marks), paint=paint)


def percent_axis(axis: Any) -> None:
    """Ticks of a share axis as per cent."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    low, high = axis.get_view_interval()
    decimals = sum(high - low <= width for width in (0.04, 0.004, 0.0004))
    axis.set_major_formatter(PercentFormatter(1, decimals=decimals, symbol="\u202f%"))


def _write(value: float, form: str | None) -> str:
    return percent(value) if form is None else form.format(value).replace("-", MINUS)


def say(marks: Sequence[Mark], form: str | None = None) -> str:
    """Marks in words, for the text alternative."""

    def one(mark: Mark) -> str:
        said = f"{mark.name} {_write(mark.value, form)}"
        if mark.interval is None:
            return said
        low, high = (_write(end, form) for end in mark.interval)
        return f"{said} (interval {low} to {high})"

    return ", ".join(one(mark) for mark in marks)


def inline(drawing: Drawing) -> Markup:
    """The SVG of a drawing, as markup that a page may hold unescaped.

    A drawing may come back from a file, so it is parsed and only what `draw` makes passes: shapes, text, references
    inside the drawing; no script, no style sheet, no event, nothing fetched.

    Raises:
        InputError: when there is anything else in it.
    """
    try:
        root = ElementTree.fromstring(drawing.svg)
    except ElementTree.ParseError as error:
        raise InputError(f"figure {drawing.key!r}: expected an SVG element made by draw(), found broken XML") from error
    for element in root.iter():
        strange = sorted(set(element.attrib) - _ATTRIBUTES)
        target = element.attrib.get("href", "#")
        if element.tag not in _TAGS or strange or not target.startswith("#"):
            raise InputError(
                f"figure {drawing.key!r}: expected an SVG element made by draw(), found "
                f"{element.tag} {strange} {target}"
            )
        if re.search(r"url\((?!#)|@import", " ".join(element.attrib.values())):
            raise InputError(f"figure {drawing.key!r}: expected no address outside the page, found one")
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _fit_for_page(document: str, key: str, title: str, alt: str) -> str:
    """A matplotlib SVG document as an element for an HTML page: own ids, the page's colours, no metadata."""
    root = ElementTree.fromstring(document)
    for parent in root.iter():
        for child in [c for c in parent if c.tag.endswith(("}metadata", "}style"))]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            name.rpartition("}")[2]: _localise(name, value, key) for name, value in element.attrib.items()
        }
    root.attrib = {
        "class": "drawing",
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{key}-title {key}-alt",
        "style": "stroke-linejoin: round; stroke-linecap: butt",
    }
    for tag, text in (("desc", alt), ("title", title)):
        described = ElementTree.Element(tag, {"id": f"{key}-{'title' if tag == 'title' else 'alt'}"})
        described.text = text
        root.insert(0, described)
    return ElementTree.tostring(root, encoding="unicode")


def _localise(name: str, value: str, key: str) -> str:
    name = name.rpartition("}")[2]
    if name == "id":
        return f"{key}-{value}"
    if name == "href":
        return value.replace("#", f"#{key}-", 1)
    value = value.replace("url(#", f"url(#{key}-")
    for variable, colour in _COLOURS.items():
        value = value.replace(colour, f"var(--{variable})")
    return value
