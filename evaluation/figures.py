"""The figures of a report, as SVG text: perplexity, context gain, loss by position, training.

What is unusual: the same results give the same bytes (no dates, no random ids), text stays text,
and an SVG can be put into a page as it is, since its ids begin with the figure's name. A group
keeps its colour, marker and dash in all figures: Okabe and Ito's colours, which colour-blind
readers can tell apart, and where those run out the dashes differ.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any

from errors import printable
from evaluation.collect import Group
from evaluation.measures import Line, Section, exp

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX*<>"
DASHES = ("-", "--", ":", "-.")
WINDOW: dict[str, Any] = {"linewidth": 1.1, "linestyle": (0, (1, 1.5))}
Point = tuple[float, Any, float | None, float | None]  # x, y, low, high
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "lengthwise",  # ids that do not change from run to run
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # to measure with; the SVG asks for any sans-serif
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "legend.frameon": False,
    "text.parse_math": False,  # a scheme's name may hold a dollar sign
}


def _style(index: int) -> dict[str, Any]:
    dash = DASHES[index // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dash}


def _marker(index: int) -> dict[str, Any]:
    return {"marker": MARKERS[index % len(MARKERS)], "markeredgecolor": "white"}


def perplexity(section: Section) -> str:
    """Perplexity against context length, log-log, with intervals."""

    def points(line: Line) -> list[Point]:
        return [
            (at, exp(m.loss), exp(m.low), exp(m.high))
            for at, place in zip(section.at, section.places, strict=True)
            for m in [section.measures[_full(line, place)][place]]
            if exp(m.loss) is not None
        ]

    def draw(axes: "Axes") -> None:
        _lines(axes, section, points)
        axes.set_yscale("log")
        _lengths(axes, section)
        axes.set_ylabel("perplexity")
        _plain_ticks(axes)

    return svg(f"perplexity-{section.way.name}", "Perplexity against context length", draw)


def gain(section: Section) -> str:
    """Context gain against context length."""

    def points(line: Line) -> list[Point]:
        gains, trained = section.gains[line.name], str(line.group.trained_context)
        return [
            (at, 0.0, None, None)
            if place == trained and place not in gains
            # the trained length gains nothing over itself: the point where the curve begins
            else (at, gains[place].estimate, gains[place].low, gains[place].high)
            for at, place in zip(section.at, section.places, strict=True)
            if place in gains or (gains and place == trained)
        ]

    def draw(axes: "Axes") -> None:
        axes.axhline(0, color="#555555", linewidth=1)
        _lines(axes, section, points)
        # A scheme that breaks down loses several nats and would hide what the others gain.
        if max(map(abs, axes.get_ylim())) > 0.3:
            axes.set_yscale("symlog", linthresh=0.1, linscale=1.5)
            axes.set_ylim(*(1.5 * bound for bound in axes.get_ylim()))
        _lengths(axes, section)
        axes.set_ylabel("context gain (nats per token)")
        _plain_ticks(axes)

    return svg(f"gain-{section.way.name}", "Context gain against context length", draw)


def by_position(section: Section) -> str:
    """Loss against tokens of context."""

    def points(line: Line) -> list[Point]:
        return [
            (at, m.loss, m.low, m.high)
            for at, place in zip(section.at, section.places, strict=True)
            for m in [section.measures[line.name][place]]
            if m.loss is not None
        ]

    def draw(axes: "Axes") -> None:
        _lines(axes, section, points)
        _trained_lines(axes, section.groups)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens of context")
        axes.set_ylabel("loss (nats per token)")
        _plain_ticks(axes, x=True)

    return svg(f"position-{section.way.name}", "Loss against tokens of context", draw)


def curves(groups: Sequence[Group]) -> list[tuple[int, str, list[tuple[int, float]]]]:
    """Validation losses over tokens of every run: (number of its group, name, points)."""
    key = "val/loss"
    return [
        (index, group.name, [(r["tokens"], r[key]) for r in run.curve if r.get(key) is not None])
        for index, group in enumerate(groups)
        for run in group.runs.values()
    ]


def training(groups: Sequence[Group]) -> str:
    """Validation loss over tokens, a line a run."""

    def draw(axes: "Axes") -> None:
        named: set[str] = set()
        for index, name, points in curves(groups):
            if points:
                label = "" if name in named else _shown(name)
                axes.plot(*zip(*points, strict=True), label=label, **_style(index))
                named.add(name)
        axes.set_xlabel("training tokens")
        axes.set_ylabel("validation loss (nats per token)")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    return svg("training", "Validation loss against training tokens", draw)


def _shown(name: str) -> str:
    """A name from somebody's file, as XML can hold it and a legend shows it: one with `_` first is left out."""
    return f"{' ' * name.startswith('_')}{printable(name)}"


def _full(line: Line, place: str) -> str:
    """Whose measure a line has at a place: a window as long as the input is full attention."""
    return line.group.name if place == str(line.window) else line.name


def _lines(axes: "Axes", section: Section, points: Callable[[Line], list[Point]]) -> None:
    """Every group, and its windows in thin dots of the same colour."""
    drawn = [(line, section.groups.index(line.group), points(line)) for line in section.lines]
    for line, index, found in drawn:
        if found and not line.window:
            _line(axes, index, line.name, found)
    for line, index, found in drawn:
        if found and line.window:
            x, y = [p[0] for p in found], [p[1] for p in found]
            axes.plot(x, y, color=_style(index)["color"], **WINDOW)
    for window in dict.fromkeys(line.window for line, _, found in drawn if line.window and found):
        axes.plot([], [], color="#777777", label=f"window {window:,}", **WINDOW)


def _line(axes: "Axes", index: int, name: str, points: Sequence[Point]) -> None:
    """Points, line and bars; each group a little beside the others, or bars would hide bars."""
    style, apart = _style(index), 2 ** (0.02 * (-1) ** index * ((index + 1) // 2 % 5))
    x, y = [p[0] * apart for p in points], [p[1] for p in points]
    axes.plot(x, y, label=_shown(name), **style, **_marker(index))
    bars = [(at, low, high) for at, _, low, high in points if low is not None and high is not None]
    for at, low, high in bars:
        axes.plot(
            [at * apart, at * apart],
            [low, high],
            color=style["color"],
            linewidth=1,
            solid_capstyle="butt",
        )


def _lengths(axes: "Axes", section: Section) -> None:
    _trained_lines(axes, section.groups)
    axes.set_xscale("log", base=2)
    axes.set_xticks(section.at, [f"{at:,.0f}" for at in section.at])
    axes.minorticks_off()
    axes.set_xlabel("context length (tokens)")


def _trained_lines(axes: "Axes", groups: Sequence[Group]) -> None:
    for length in sorted({group.trained_context for group in groups}):
        axes.axvline(length, color="#777777", linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"trained at {length:,}",
            (length, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, 2),
            textcoords="offset points",
            fontsize=8,
            color="#555555",
        )


def _plain_ticks(axes: "Axes", x: bool = False) -> None:
    """12 and 0.05, not 1.2e1: readers compare these with the table."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.yaxis, axes.xaxis) if x else (axes.yaxis,):
        axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    low, high = axes.get_ylim()
    scale = axes.get_yscale()
    if scale == "linear":
        return
    if scale == "log" and high / low < 5:  # hardly a power of ten in sight
        ticks = list(MaxNLocator(5).tick_values(low, high))
    else:
        ticks = [
            0.0,
            *(m * 10.0**e * sign for e in range(-2, 12) for m in (1, 3) for sign in (1, -1)),
        ]
        ticks = [t for t in ticks if abs(t) not in (0.01, 0.03)]
    axes.set_yticks(sorted(t for t in ticks if low <= t <= high))
    axes.set_ylim(low, high)
    axes.yaxis.minorticks_off()


@contextmanager
def drawing(style: dict[Any, Any]) -> Iterator[None]:
    """matplotlib as it was installed, under our style: no setting of the user's, who may have set up a notebook,
    a backend, a matplotlibrc, changes a byte or has a say in whether there is a figure at all.
    """
    names = ("MPLBACKEND", "MATPLOTLIBRC")  # read at the first import
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ["MATPLOTLIBRC"] = os.devnull
    try:
        import matplotlib
    finally:
        del os.environ["MATPLOTLIBRC"]
        os.environ |= before
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        yield


def svg(name: str, title: str, draw: "Callable[[Axes], None]") -> str:
    with drawing(STYLE):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.4, 4), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        draw(axes)
        labels = axes.get_legend_handles_labels()[1]
        if labels:
            wide = max(map(len, labels)) > 22
            figure.legend(loc="outside lower center", ncols=1 if wide else min(4, len(labels)))
        file = StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    return _embeddable(file.getvalue(), name, title)


def _embeddable(svg: str, name: str, title: str) -> str:
    """Without prologue and metadata, with ids of its own and a title for screen readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub("<[^>]*>", lambda tag: _own(tag[0], name), svg)  # a name's own > is &gt;
    return re.sub(r"<svg ", f'<svg role="img" aria-label="{title}" ', svg, count=1)


def _own(tag: str, name: str) -> str:
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = re.sub(r"url\(#", f"url(#{name}-", tag)
    tag = re.sub(r'href="#', f'href="#{name}-', tag)
    tag = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 sans-serif", tag)
    return re.sub(r"font-family: [^;\"]*", "font-family: sans-serif", tag)
