"""docs/schemes.md is true: every scheme has its section and picture, and both are what the code makes today. The
numbers of docs/methodology.md and the README are those of the committed results."""

import math
import re

import matplotlib
import pytest
from conftest import ROOT, SCHEMES

from docs import measures, methodology, pictures
from errors import UserError
from model.position.alibi import slopes
from model.transformer import Transformer

PAGE = (ROOT / "docs/schemes.md").read_text()
SECTIONS = {
    text.partition("\n")[0]: text.partition("\n## ")[0] for text in PAGE.split("\n### ")[1:]
}
PINNED = re.search(r"^matplotlib==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def made():
    return pictures.made()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_has_a_section_with_its_picture(scheme):
    assert re.search(rf"^!\[.+\]\(schemes/{scheme}\.svg\)$", SECTIONS[scheme], re.M)
    assert (ROOT / f"docs/schemes/{scheme}.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_parameters_in_the_table_are_those_a_model_gets(scheme):
    config = measures.tiny()
    assert (config.d_model, config.n_heads, config.n_layers, config.context_length) == (
        128,
        4,
        4,
        128,
    )
    with_it, without = (
        sum(p.numel() for p in Transformer(config, measures.settings(name)).parameters())
        for name in (scheme, "none")
    )
    row = re.search(rf"^\| \[{scheme}\].*$", PAGE, re.M)
    assert row and int(row[0].split("|")[3].replace(",", "")) == with_it - without


@pytest.mark.parametrize("scheme", SCHEMES)
def test_settings_named_in_a_section_are_settings(scheme):
    named = set(re.findall(r"`position\.(\w+)`", SECTIONS[scheme]))
    keys = measures.settings(scheme).keys() - {"name"}
    assert named <= keys
    assert keys <= set(re.findall(r"`position\.(\w+)`", PAGE))


def test_the_page_is_up_to_date(made):
    assert made[pictures.PAGE] == PAGE, "python -m docs.pictures"


def test_pictures_are_up_to_date(made):
    """Numbers within two tenths of a point: processors differ in the last digit."""
    if not PINNED or matplotlib.__version__ != PINNED[1]:
        pytest.skip("another matplotlib draws other axes")
    drawn = {path: text for path, text in made.items() if path.suffix == ".svg"}
    assert drawn.keys() == set((ROOT / "docs/schemes").iterdir())
    drawn[methodology.PICTURE] = methodology.picture()
    for path, text in drawn.items():
        old, new = (
            re.sub(r"#?\b(?:early-tokens-)?[mp][0-9a-f]{10}\b", "", t)
            for t in (path.read_text(), text)
        )
        command = "docs.readme" if path == methodology.PICTURE else "docs.pictures"
        assert NUMBER.sub("0", old) == NUMBER.sub("0", new), f"{path}: python -m {command}"
        pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
        assert all(abs(float(a) - float(b)) < 0.25 for a, b in pairs), path


def test_lines_go_by_distance():
    ((_, _, lines),) = measures.panels("alibi", "")
    for slope, line in zip(slopes(4), lines, strict=True):
        assert line.y == pytest.approx([-slope * d for d in range(1024)], abs=1e-4)
    ((_, _, lines),) = measures.panels("rope", "base: [100]")
    angles = [100 ** (-t / 16) for t in range(16)]
    expected = [sum(math.cos(d * a) for a in angles) / 16 for d in range(1024)]
    assert lines[0].y == pytest.approx(expected, abs=1e-4)


def test_a_layer_shows_what_it_sees():
    (window, (_, _, near)), (everything, (_, _, far)) = (
        (layers, panel) for panel, layers in measures.panels("hybrid", "").items()
    )
    assert (window, everything) == ([1, 3], [2, 4])
    assert len(near[0].y) == 64
    assert far[0].y == (0.0,) * 1024


def test_a_scheme_without_a_section_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "PAGE", tmp_path / "schemes.md")
    pictures.PAGE.write_text(PAGE.replace("### t5", "### t6"))
    with pytest.raises(UserError, match=r"t5.*heading"):
        pictures.made()
