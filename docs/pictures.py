"""The pictures and the generated parts of docs/schemes.md: `python -m docs.pictures`.

What is unusual: the page decides what is made. Its sections are the list of schemes, and a marker
`<!-- scheme:fox bias: [0, 2.2] -->` has a setting varied in the picture. The same code gives the same
bytes.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs.measures import CONFIGS, MEASURES, MULTIPLE, Line, build, panels, settings, speaks, tiny
from errors import UserError
from evaluation.figures import COLOURS, STYLE, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = Path(__file__).parent / "schemes.md"
FLOOR = -12  # of drawn scores: exp(-12) is 6 millionths
LEAN: dict[Any, Any] = {
    "path.simplify_threshold": 0.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
BLOCK = re.compile(r"<!-- scheme:(\w+) ?(.*?) ?-->\n.*?<!-- /scheme -->", re.S)
TABLE = re.compile(r"<!-- table -->\n.*?<!-- /table -->", re.S)

HEAD = """\
| scheme | speaks in | parameters | beyond the trained context | source |
|---|---|---:|---|---|"""


def colour(line: Line) -> str:
    return COLOURS[line.colour % len(COLOURS)]


def draw(axes: "Axes", reach: int, found: Sequence[Line]) -> None:
    trained = tiny().context_length
    for line in found:
        y, dash = line.y[: reach + 1], "--" if line.dashed else "-"
        axes.plot(range(len(y)), y, dash, color=colour(line), linewidth=1.2)
    low, high = (limit(y for line in found for y in line.y) for limit in (min, max))
    low = max(FLOOR, low)
    room = (high - low or 20) / 20
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(0, reach)
    axes.set_xticks([reach * n // 4 for n in range(5)])
    axes.set_xlabel("distance (tokens)")
    if reach > trained:
        axes.axvline(trained, color="#777777", linewidth=1, linestyle=(0, (4, 3)))
        place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        words = {"fontsize": 8, "color": "#555555", "xytext": (4, 2)}
        axes.annotate(f"trained at {trained}", (trained, 1), **place, **words)


def legend(figure: "Figure", found: Sequence[Line]) -> None:
    from matplotlib.lines import Line2D

    labels = {line.label: Line2D([], [], color=colour(line)) for line in found}
    if any(line.dashed for line in found):
        text = f"in a text of {tiny().context_length} tokens"
        labels[text] = Line2D([], [], color="#777777", linestyle="--")
    if len(labels) > 1:
        figure.legend(
            list(labels.values()),
            list(labels),
            loc="outside lower center",
            ncols=5,
            fontsize=9,
            columnspacing=1.4,
        )


def picture(layers: Mapping[Any, list[int]]) -> str:
    """As SVG text: a row for each panel, within the trained context and to a multiple of it."""
    reach = tiny().context_length
    with drawing({**STYLE, **LEAN}):
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 2.4 * len(layers) + 0.3), layout="constrained")
        FigureCanvasSVG(figure)
        shape = {"sharey": "row", "squeeze": False, "width_ratios": (2, 3)}
        grid = figure.subplots(len(layers), 2, **shape)
        for (near, far), ((place, window, found), where) in zip(grid, layers.items(), strict=True):
            draw(near, reach, found)
            draw(far, MULTIPLE * reach, found)
            near.set_ylabel(MEASURES[place][0])
            if len(layers) > 1:
                sees = f": {window} tokens are seen" if window else ": all tokens are seen"
                near.set_title(
                    f"layers {', '.join(map(str, where))}{sees}", fontsize=10, loc="left"
                )
        legend(figure, [line for _, _, found in layers for line in found])
        file = StringIO()
        nobody = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nobody)
    return small(file.getvalue())


def small(svg: str) -> str:
    """Without prologue, in any sans-serif, lines as steps of tenths of a point."""
    svg = re.sub(
        r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL
    )
    svg = re.sub(r' id="[\w.]+_\d+"| transform="rotate\(-0 [^"]*"| font-family: [^;"]*;', "", svg)
    svg = svg.replace("</style>", "text{font-family: sans-serif}</style>", 1)
    svg = re.sub(r' d="([ML\d.\s-]+)"', steps, svg)
    svg = re.sub(r'(?<=[ "(])-?\d+\.\d\d+', lambda number: f"{float(number[0]):.1f}", svg)
    return re.sub(r"\s*\n\s*", "\n", svg)


def steps(path: re.Match[str]) -> str:
    """M and L to points -> m by steps, to which a pair without a letter adds a line."""
    here, text = (0, 0), []
    for letter, *point in re.findall(r"([ML]) (\S+) (\S+)", path[1]):
        x, y = (round(float(number) * 10) for number in point)
        text.append(f"{'m' * (letter == 'M')}{(x - here[0]) / 10:g} {(y - here[1]) / 10:g}")
        here = x, y
    return f' d="{" ".join(text)}"'


def parameters(option: str) -> str:
    own = {p for scheme in build(settings(option)) for p in scheme.parameters()}
    return f"{sum(parameter.numel() for parameter in own):,}"


def row(option: str, source: str) -> str:
    positions = build(settings(option))
    places = dict.fromkeys(
        " and ".join(f"`{p}`" for p in speaks(q)) or "nowhere" for q in positions
    )
    limits = [p.max_length for p in positions if p.max_length is not None]
    beyond = "yes" if not limits else "no" if min(limits) <= tiny().context_length else min(limits)
    cells = (f"[{option}](#{option})", " / ".join(places), parameters(option), beyond, source)
    return f"| {' | '.join(map(str, cells))} |"


def made() -> dict[Path, str]:
    """What the files should hold: the page with its generated parts anew, and each picture."""
    page = PAGE.read_text()
    found = {match[1]: match[2] for match in BLOCK.finditer(page)}
    sources = dict(re.findall(r"^### (\w+)\n\nSource: (.*)$", page, re.M))
    missing = {path.stem for path in (CONFIGS / "position").glob("*.yaml")} ^ found.keys()
    missing |= found.keys() ^ sources.keys()
    if missing:
        raise UserError(
            f"docs/schemes.md: {', '.join(sorted(missing))} needs a heading `### name`, a line"
            " `Source: ...`, and markers `<!-- scheme:name -->` `<!-- /scheme -->`, for a file in"
            " configs/position"
        )
    files = {PAGE.parent / f"schemes/{o}.svg": picture(panels(o, v)) for o, v in found.items()}
    table = "\n".join([HEAD, *(row(option, sources[option]) for option in found)])
    page = TABLE.sub(lambda _: f"<!-- table -->\n{table}\n<!-- /table -->", page)
    return files | {PAGE: BLOCK.sub(block, page)}


def block(old: re.Match[str]) -> str:
    option, varied = old[1], old[2]
    what = dict.fromkeys(MEASURES[place][0] for place, _, _ in panels(option, varied))
    return (
        f"<!-- scheme:{option}{varied and ' ' + varied} -->\n"
        f"![{option}: {', '.join(what)}, by distance](schemes/{option}.svg)\n\n"
        f"Parameters added: {parameters(option)}. Settings:"
        f" [{option}.yaml](../configs/position/{option}.yaml).\n"
        "<!-- /scheme -->"
    )


def main() -> None:
    try:
        files = made()
    except UserError as error:
        sys.exit(f"error: {error}")
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    print(f"{len(files)} files written")


if __name__ == "__main__":
    if "--help" in sys.argv[1:]:
        sys.exit(print(__doc__))
    main()
