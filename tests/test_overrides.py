"""Command lines under fire: what is malformed stops with one line that names its key and leaves nothing behind, what
is well-formed trains.

Unusual: cases are drawn from the schema and the YAML files (tests/malformed.py,
tests/well_formed.py), so that a new key, option or scheme
is attacked without anybody writing a test for it. The same cases come every time; for a hunt with other and many
more: pytest tests/test_overrides.py --hypothesis-profile=hunt -s
"""

from pathlib import Path

import pytest
from conftest import command
from hypothesis import HealthCheck, Phase, given, settings
from malformed import malformed, malformed_elsewhere
from well_formed import well_formed

HUNT = settings.get_current_profile_name() == "hunt"


def many(examples: int) -> settings:
    return settings(
        max_examples=25 * examples if HUNT else examples,
        derandomize=not HUNT,
        phases=[Phase.explicit, Phase.generate] + ([Phase.shrink] if HUNT else []),
        suppress_health_check=list(HealthCheck),
        database=None,
        deadline=None,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Hydra composes everything twice, first to learn whether this is a sweep: here none is."""
    from hydra._internal.hydra import Hydra
    from hydra.types import RunMode

    monkeypatch.setattr(Hydra, "get_mode", lambda *_, **__: RunMode.RUN)


def refused(name: str, arguments: list[str], word: str, capfd) -> None:
    before = sorted(Path().rglob("*"))
    capfd.readouterr()
    code = command(name, *arguments)
    out, said = capfd.readouterr()
    assert code == 1 and not out, (arguments, code, out)
    assert said.startswith("error: ") and said.count("\n") == 1 and "Traceback" not in said, said
    assert word in said, (arguments, said)
    assert sorted(Path().rglob("*")) == before, arguments


FOUND: list[tuple[list[str], str]] = []
SMALLEST = ["experiment=smoke", "tracker=none", "train.steps=1"]


def test_malformed_training_is_refused_by_name(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    seen = []

    @many(200)
    @given(malformed())
    def attack(case):
        overrides, word = case
        seen.append(overrides)
        refused("train", [*SMALLEST, *overrides], word, capfd)

    attack()
    assert len(seen) >= 200
    print(f"{len(seen)} malformed overrides, 0 tracebacks")


@pytest.mark.parametrize(("overrides", "word"), FOUND, ids=[" ".join(o)[:60] for o, _ in FOUND])
def test_what_a_hunt_once_found(overrides, word, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    refused("train", [*SMALLEST, *overrides], word, capfd)


def test_malformed_evaluation_is_refused_by_name(smoke, tmp_path, monkeypatch, capfd):
    folder = smoke("rope")
    (tmp_path / "run").symlink_to(folder)
    monkeypatch.chdir(tmp_path)

    @many(60)
    @given(malformed_elsewhere())
    def attack(case):
        name, overrides, word = case
        mine = [] if name == "compare" else ["run=run"]
        before = sorted(folder.rglob("*"))
        refused(name, [*mine, *overrides], word, capfd)
        assert sorted(folder.rglob("*")) == before

    attack()


@pytest.mark.parametrize("flags", [["-m"], []])
def test_a_refused_sweep_says_so_for_each_job(flags, corpus, tmp_path, monkeypatch, capfd):
    monkeypatch.undo()  # Hydra's own way to find the mode
    monkeypatch.chdir(tmp_path)
    sweep = ["seed=-1,-2"] if flags else ["hydra.mode=MULTIRUN", "seed=-1,-2"]
    assert command("train", *flags, *SMALLEST, *sweep) == 1
    said = capfd.readouterr().err
    assert said.count("error: seed=-") == 2 and "Traceback" not in said
    assert not [path for path in Path().rglob("*") if path.is_dir() and path.parent.name == "rope"]


def test_well_formed_commands_train(corpus, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)

    @many(20)
    @given(well_formed())
    def train(overrides):
        capfd.readouterr()
        code = command("train", *SMALLEST, "data=files", *corpus, *overrides)
        assert code == 0, (overrides, capfd.readouterr().err)

    train()
    runs = list(Path("outputs").glob("*/*/checkpoints/last"))
    assert len(runs) >= 20
    assert {path.name for path in Path().iterdir()} == {"outputs"}
