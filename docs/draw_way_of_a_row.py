"""Draws docs/way-of-a-row.svg, the picture of docs/architecture.md: `python docs/draw_way_of_a_row.py`.

The background is opaque and light, so that the text can be read on a light and on a dark page.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

plt.switch_backend("svg")
rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "understudy"})

INK, PAPER, CLIENT, SERVER, STATE = "#1c2733", "#ffffff", "#e6effa", "#fbefdf", "#edf0f3"
# x and width of the three columns.
STEP, OTHER, KEPT = (3.0, 33.0), (42.5, 22.0), (69.5, 33.0)
TOP, PITCH, HEIGHT = 84.0, 10.2, 5.6
# From top to bottom: the step, what it does, and what it leaves where. The gaps are the numbered arrows.
STEPS = (
    ("Source", "CSV, JSONL, Parquet, hub data set", ""),
    ("Validate", "check, split, make the run plan", ""),
    ("Register", "note the rows under their source", "ledger: source, keyed hashes\nprivate store: checked rows"),
    ("Charge", "the run's one event", "ledger: charge, list of queries,\nsalt of its noise"),
    (
        "Private steps",
        "train, release or score, with noise",
        "checkpoints, release log\nexchange store: what was released",
    ),
    ("Finalize the charge", "no noise can be drawn any more", "ledger: salt erased\nrelease log removed"),
    ("Post-processing", "generate, match or select texts", "exchange store: synthetic texts"),
    ("Evaluate and audit", "compare with real rows", "private store: figures"),
    ("Export", "texts, model, statement, report", "DIR/export: safe to hand over\nDIR/internal: from real rows"),
)
# What may run in the server zone: beside which step, and what.
BESIDE = ((4, "Propose, learn", "from noised values"), (6, "Generate", "from the released model"))


def main() -> None:
    """Write the picture beside this file."""
    figure, axes = plt.subplots(figsize=(9.8, 10.2))
    axes.set(xlim=(0, 103.5), ylim=(-4, 98))
    axes.axis("off")
    zone(axes, (1.0, 37.0), (row(8) - 1.8, 94.5), "client zone: where the private rows are", CLIENT)
    zone(axes, (41.0, 25.0), (row(6) - 1.8, row(3) + 1.6), "server zone, where apart", SERVER)
    axes.text(KEPT[0] + KEPT[1] / 2, row(1) + 2, "what the step leaves where", ha="center", style="italic", fontsize=9)
    for number, (title, text, kept) in enumerate(STEPS):
        if kept:
            axes.plot([STEP[0], KEPT[0]], [row(number) + HEIGHT / 2] * 2, ls=":", lw=1, color=INK, zorder=1)
            box(axes, KEPT, row(number), kept, fill=STATE)
        box(axes, STEP, row(number), text, title=title)
        if number:
            arrow(axes, (19.5, row(number - 1)), (19.5, row(number) + HEIGHT))
            axes.text(20.8, row(number) + (HEIGHT + PITCH) / 2, str(number), va="center", fontsize=10)
    for number, title, text in BESIDE:
        box(axes, OTHER, row(number), text, title=title)
        arrow(axes, (36.0, row(number) + HEIGHT / 2), (42.5, row(number) + HEIGHT / 2), style="<->")
    crosses = "public settings and\nreleased artifacts cross,\nno private row"
    axes.text(
        54.5, row(5) + HEIGHT / 2, crosses, ha="center", va="center", fontsize=8.5, bbox={"fc": SERVER, "ec": "none"}
    )
    every = (
        "A cached task also keeps its result (references, public values) in the private root. MLflow records all tasks."
    )
    axes.text(51, -2.6, every, ha="center", fontsize=9)
    figure.savefig(
        Path(__file__).with_name("way-of-a-row.svg"),
        bbox_inches="tight",
        facecolor=PAPER,
        metadata={"Date": None, "Creator": None},
    )


def row(number: int) -> float:
    """The lower edge of a step's box."""
    return TOP - number * PITCH


def zone(axes: Axes, across: tuple[float, float], up: tuple[float, float], name: str, fill: str) -> None:
    """The coloured ground of a zone, with its name at the top."""
    rounded = "round,pad=0,rounding_size=1"
    axes.add_patch(FancyBboxPatch((across[0], up[0]), across[1], up[1] - up[0], boxstyle=rounded, fc=fill, ec="none"))
    axes.text(across[0] + across[1] / 2, up[1] - 2.4, name, ha="center", style="italic", fontsize=9, color=INK)


def box(axes: Axes, across: tuple[float, float], y: float, text: str, *, title: str = "", fill: str = PAPER) -> None:
    """A box of one or two lines; a title is bold."""
    rounded = "round,pad=0,rounding_size=0.8"
    axes.add_patch(
        FancyBboxPatch((across[0], y), across[1], HEIGHT, boxstyle=rounded, fc=fill, ec=INK, lw=0.9, zorder=2)
    )
    middle = across[0] + across[1] / 2
    if title:
        axes.text(middle, y + 3.9, title, ha="center", va="center", weight="bold", fontsize=10, color=INK)
    axes.text(middle, y + (1.5 if title else HEIGHT / 2), text, ha="center", va="center", fontsize=8.5, color=INK)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, style: str = "->") -> None:
    """A straight arrow."""
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": style, "color": INK, "shrinkA": 0, "shrinkB": 0})


if __name__ == "__main__":
    main()
