"""Figures are the same bytes whatever matplotlib is set up for on the machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from evaluation.figures import svg
from tests.evaluation.report_runs import flat, write_run

HOSTILE = """\
backend: TkAgg
text.usetex: True
lines.linewidth: 20
axes.facecolor: red
figure.dpi: 10
savefig.bbox: tight
svg.hashsalt: other
svg.fonttype: path
xtick.direction: in
"""
SETUPS = {
    "notebook": {"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
    "no such backend": {"MPLBACKEND": "nonsense"},
    "window": {"MPLBACKEND": "TkAgg", "DISPLAY": ":99"},
    "matplotlibrc": {"MATPLOTLIBRC": "{tmp}/matplotlibrc"},
    "no text": {"MATPLOTLIBRC": "{tmp}/binary"},
    "configuration": {"MPLCONFIGDIR": "{tmp}"},
    "here": {"HERE": "{tmp}"},
}
SCRIPT = "import sys; from tests.evaluation.test_figures import figure; sys.stdout.write(figure())"


def figure() -> str:
    return svg("a", "A line", lambda axes: axes.plot([1, 2, 3], [2, 1, 4], label="rope"))


@pytest.fixture
def rc(tmp_path) -> Path:
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    return tmp_path


@pytest.mark.parametrize("setup", SETUPS.values(), ids=list(SETUPS))
def test_a_figure_depends_on_nothing_of_the_users(rc, setup):
    more = {key: value.format(tmp=rc) for key, value in setup.items()}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **more, "PYTHONPATH": paths},
        cwd=more.get("HERE", ROOT),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == figure()


def test_nor_on_what_this_process_has_set_and_leaves_that_alone():
    import matplotlib

    before = figure()
    with matplotlib.rc_context({"axes.linewidth": 9, "xtick.direction": "in"}):
        assert figure() == before
        assert matplotlib.rcParams["axes.linewidth"] == 9


def test_a_notebooks_backend_leaves_no_trace(tmp_path, monkeypatch):
    from conftest import command

    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    write_run(tmp_path / "runs/rope", loss=flat, lengths=(128, 256))
    arguments = [f"runs=[{tmp_path}/runs/*]", f"out={tmp_path}/report", "tracker=none"]
    assert command("compare", *arguments) == 0
    assert os.environ["MPLBACKEND"] == "module://matplotlib_inline.backend_inline"
    assert "MATPLOTLIBRC" not in os.environ
    assert len(list((tmp_path / "report").glob("*.svg"))) == 4
