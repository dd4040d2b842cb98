"""Names out of other people's files, through every form of a report: shown as they are, taken for nothing else."""

import csv
import io
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import command
from markdown_it import MarkdownIt
from rich.console import Console

from errors import printable
from evaluation.formats import Cell, Table, html, markdown, spreadsheet, to_rich
from evaluation.page import Figure, Page, Part, render_html, render_markdown
from evaluation.report import write
from tests.evaluation.report_runs import flat, report, steep, write_run

HOSTILE = [
    "<script>alert(1)</script>", "</title></svg><img src=x onerror=alert(1)>", '" onload="alert(1)', "a|b||c", "\\|x\\",
    "`code`", "```\n# head", "[link](javascript:alert(1))", "![image](http://evil.example/x.png)", "<!-- gone", "\\",
    "x\n\n# heading\n- item", "=cmd()", "+1+1", "-1+1", "@SUM(A1)", "\t=1+1", "\r=1", "\n=1", "\uff1d1",
    "[bold red]rich[/]", "[/]", "\x1b]0;title\x07\x1b[31m", "\u202egnp.exe", "_hidden", "*a* **b** _c_ ~~d~~ $x$",
    "&lt;b&gt; &amp;", "http://evil.example", "www.evil.example", "<a@evil.example>", ":smile:", "\x00\x01",
    'id="x" url(#y) href="#z"', "font-family: x; font: 9px y", "\u2028\x85", "Übergröße 漢字",
]  # fmt: skip
TOGETHER = [  # several of them in one name, each beginning with what only the beginning of a cell can be
    "=1 <script>alert(1)</script> a|b `code` [x](javascript:y) www.evil.example \x1b[31m\u202eend",
    "@2 </title></svg><img src=x onerror=z> ```\n# head *a* _b_ $x$ http://evil.example [/] \\",
    '_3 " onload="alert(1)" \n\n- item ![image](x.png) <!-- &lt;b&gt; id="x" url(#y) font: 9px y',
]
READER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
WELL_KNOWN = (
    "html head meta title style body header h1 h2 h3 p main section footer div strong ul li "
)
WELL_KNOWN += "small table thead tbody tr th td details summary pre figure figcaption "
WELL_KNOWN += "svg path g defs use line text clippath rect"


def write_pair(root: Path, name: str) -> None:
    """Two runs; every field of the second that holds a name holds this one, and so does its folder."""
    as_file = re.sub("/", "", name)
    header = dict.fromkeys(("position", "trained_position", "data", "torch", "commit"), name)
    config = {f"key {name}": 1, "setting": f"value {name}"}
    config = {"position": config, "tracker": {"group": name}}
    shared = {"tokenizer": {f"both {name}": name}}
    kinds = {"lengths": (128, 256), "protocols": ("same_tokens", "per_position")}
    write_run(root / "alibi", label="alibi", loss=flat, config=shared, **kinds)
    second = {"label": as_file, "loss": steep, "header": header, "config": config | shared, **kinds}
    path = write_run(root / as_file, **second) / f"eval/{as_file}.json"
    unit = f'"ci_unit": {json.dumps(f"unit {name}")}'
    path.write_text(re.sub('"ci_unit": "[^"]*"', lambda _: unit, path.read_text()))


class Text(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.comments: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.text.append(data)

    def handle_comment(self, data):
        self.comments.append(data)


def cells(folder: Path) -> Iterator[str]:
    for path in folder.glob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_text(), newline="")):
            yield from row


def check(folder: Path) -> dict[str, str]:
    """The text of each form; nothing in it but ours is more than text."""
    page = Text((folder / "index.html").read_text())
    assert page.tags <= set(WELL_KNOWN.split()), page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    links = [value for name, value in page.attributes if name.split(":")[-1] == "href"]
    assert all(link and link.startswith("#") for link in links) and not page.comments
    source = (folder / "report.md").read_text()
    read = Text(READER.render(source))
    wanted = "h1 h2 h3 p strong table thead tbody tr th td ul li pre code img blockquote"
    assert read.tags <= set(wanted.split()) and not read.comments, read.tags
    assert {v for n, v in read.attributes if n == "src"} <= {p.name for p in folder.glob("*.svg")}
    prose = re.sub(r"^(`{3,})\n.*?\n\1$", "", source, flags=re.M | re.S)  # the listing
    assert not re.search(r"(?<!\\)://|www\.|(?<!\\)\$", prose), "GitHub makes links and formulas"
    for cell in cells(folder):
        number = re.fullmatch(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", cell, re.ASCII)
        assert number or not re.match(r"[=+\-@\t\r\n]", cell), cell
    trees = [ElementTree.fromstring(path.read_text()) for path in folder.glob("*.svg")]
    tags = {element.tag.split("}")[-1].lower() for tree in trees for element in tree.iter()}
    assert tags <= set(WELL_KNOWN.split()), tags
    found = {
        "html": "".join(page.text),
        "markdown": "".join(read.text),
        "csv": "\n".join(cells(folder)),
        "svg": "\n".join("".join(tree.itertext()) for tree in trees),
    }
    for form, text in found.items():
        assert all(c.isprintable() or c == "\n" for c in text), form
    return found


@pytest.mark.parametrize("name", TOGETHER, ids=["=", "@", "_"])
def test_a_name_is_text_in_every_form(tmp_path, name):
    write_pair(tmp_path, name)
    made = report(tmp_path / "*")
    write(made, tmp_path / "report")
    found = check(tmp_path / "report")
    shown, label = printable(name), printable(name.replace("/", ""))
    for form in ("html", "markdown"):
        for text in (
            label,
            shown,
            f"key {shown}",
            f"value {shown}",
            f"tokenizer.both {shown}: {shown}",
        ):
            assert text in found[form], (form, text)
    for text in (label, f"{tmp_path}/{label}", shown, f"unit {shown}"):
        assert text in found["csv"], text
    assert found["svg"].count(label) >= 3
    file = io.StringIO()
    Console(file=file, width=400).print(to_rich(made.headline, 400))
    assert label in file.getvalue()
    assert all(c.isprintable() or c == "\n" for c in file.getvalue())


@pytest.mark.parametrize("name", TOGETHER, ids=["=", "@", "_"])
def test_every_text_of_a_page_may_be_hostile(tmp_path, name):
    strong, weak = Cell(name, name, strong=True), Cell(name, name)
    table = Table(name, [name, name], [[weak, strong], [strong, weak]], name)
    drawn = Figure("drawn", name, lambda: "<svg></svg>")
    part = Part(name, name, [drawn], [table], [name])
    page = Page(name, [name], name, [name], [name], [part, Part("Last", listing=["none"])])
    (tmp_path / "drawn.svg").write_text("<svg></svg>")
    (tmp_path / "index.html").write_text(render_html(page))
    (tmp_path / "report.md").write_text(render_markdown(page))
    found = check(tmp_path)
    # title (on a page twice), facts, warnings, finding, remarks, the part's own, a table with all its cells, listing
    places = 4 + 3 + 1 + 2 + 8 + 1 + 1
    assert found["html"].count(printable(name)) == places + 2
    assert found["markdown"].count(printable(name)) == places + 1


def test_a_folder_that_is_no_text_at_all(tmp_path):
    write_run(tmp_path / os.fsdecode(b"run\xff"), loss=flat, lengths=(128, 256))
    write(report(tmp_path / "*"), tmp_path / "report")
    check(tmp_path / "report")
    assert "run\\udcff" in (tmp_path / "report/runs.csv").read_text()


def test_what_compare_prints_moves_no_cursor(tmp_path, capsys):
    for label in ("\x1b[31mred[]", "[bold]x"):
        write_run(tmp_path / "runs" / label, label=label, loss=flat, lengths=(128, 256))
    write_run(tmp_path / "runs/\x1b]0;waiting\x07", loss=flat, evaluated=False)
    other = {"header": {"data_hash": "0" * 64}, "lengths": (128, 256)}
    write_run(tmp_path / "runs/other", label="\u202eother", loss=flat, **other)
    arguments = [f"runs=[{tmp_path}/runs/*]", f"out={tmp_path}/report", "tracker=none"]
    assert command("compare", *arguments) == 0
    said = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in said)
    assert "\\x1b[31mred[]" in said and "[bold]x" in said and "\\x1b]0;waiting\\x07" in said
    assert "warning: These runs were scored on different text" in said and "\\u202eother" in said


@pytest.mark.parametrize("name", HOSTILE)
def test_each_form_gives_the_name_back(name):
    """Not only harmless: readable as what it was."""
    shown = printable(name)
    assert "".join(Text(f'<p title="{html(name)}">{html(name)}</p>').text) == shown
    table = f"| a | b |\n| --- | --- |\n| {markdown(name)} | c |\n"
    assert Text(READER.render(f"x{markdown(name)}x")).text == [f"x{shown}x", "\n"]
    assert [t for t in Text(READER.render(table)).text if t.strip()] == [
        "a",
        "b",
        shown.strip(),
        "c",
    ]
    assert spreadsheet(name).removeprefix("'") == shown
    file = io.StringIO()
    table = Table(name, [name, "b"], [[Cell(name, name, strong=True), Cell("c")]])
    Console(file=file, width=400).print(to_rich(table, 400))
    assert file.getvalue().count(shown) == 4


@pytest.mark.parametrize("number", ["-1.5", "+3", "-2e-05", "128", "-7"])
def test_numbers_stay_numbers_in_a_spreadsheet(number):
    assert spreadsheet(number) == number and spreadsheet(float(number)) == float(number)
