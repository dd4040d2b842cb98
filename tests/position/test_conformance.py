"""The conformance kit's table, a test a row: every scheme by every check that applies to it."""

import sys

import pytest
from omegaconf import OmegaConf

from evaluation import conformance
from evaluation.conformance import rows
from evaluation.kit.reference import REFERENCES
from evaluation.kit.subjects import CONFIGS, by_name, subjects
from model.position import POSITIONS
from model.position.base import Position


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{row.scheme}: {row.check}", marks=[pytest.mark.slow] * row.slow)
        for row in rows()
    ],
)
def test_conformance(row):
    result = row.run()
    sign = "below" if result.least else "above"
    assert result.ok, f"error {result.error:.2e} is {sign} {result.bound:.1e}"


def test_every_scheme_has_a_file_and_a_reference():
    files = {path.stem: dict(OmegaConf.load(path))["name"] for path in CONFIGS.glob("*.yaml")}
    assert set(files) == set(files.values()) == set(POSITIONS)
    assert set(POSITIONS) == set(REFERENCES) | {"hybrid"}  # whose layers are the others


def test_a_scheme_without_a_reference_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(POSITIONS, "new", Position)
    (tmp_path / "new.yaml").write_text("name: new\n")
    (formula,) = (row for row in rows(subjects(tmp_path)) if row.check == "formula")
    with pytest.raises(NotImplementedError, match="new has no reference formula"):
        formula.run()


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    return conformance.main()


def test_command_prints_the_table(monkeypatch, capsys):
    monkeypatch.setattr(conformance, "CHECKS", conformance.CHECKS[:1])
    assert run(monkeypatch, "none") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["scheme", "check", "error", "bound"]
    assert out[1].startswith("none ") and out[1].endswith("ok")
    assert out[-1] == f"{len(out) - 2} of {len(out) - 2} as they should be"


def test_command_says_what_fails(monkeypatch, capsys):
    class Wrong(POSITIONS["alibi"]):
        def clock(self, x, pos, last=None):
            return super().clock(x, 2 * pos, last)

    monkeypatch.setattr(conformance, "CHECKS", conformance.CHECKS[:1])
    monkeypatch.setitem(POSITIONS, "alibi", Wrong)
    assert run(monkeypatch, "alibi") == 1
    assert "FAIL" in capsys.readouterr().out


def test_command_names_an_unknown_scheme(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "rop")
    assert "rop.yaml" in capsys.readouterr().err


def test_command_without_the_other_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    row = next(r for r in rows([by_name("rope")]) if r.check == "transformers' Llama")
    text, ok = conformance.line(row)
    assert ok and "transformers is not installed" in text
