"""Command lines under fire: what is malformed stops with one line that names its key and leaves nothing behind, what
is well-formed trains.

Unusual: cases are drawn from the schema and the YAML files (tests/malformed.py,
tests/well_formed.py), so that a new key, option or scheme
is attacked without anybody writing a test for it. The same cases come every time; for a hunt with other and many
more: pytest tests/test_overrides.py --hypothesis-profile=hunt -s
"""

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from conftest import command
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from malformed import malformed
from malformed_elsewhere import malformed_elsewhere
from well_formed import well_formed

from configs import cli
from configs.schema import TrainConfig
from runs.find import in_quotes

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


def refused(name: str, arguments: list[str], word: str, capfd) -> None:
    before = sorted(Path().rglob("*"))
    capfd.readouterr()
    code = command(name, *arguments)
    out, said = capfd.readouterr()
    assert code == 1 and not out, (arguments, code, out)
    assert said.startswith("error: ") and said.count("\n") == 1 and "Traceback" not in said, said
    assert word in said, (arguments, said)
    assert sorted(Path().rglob("*")) == before, arguments


FOUND: list[
    tuple[list[str], str]
] = [  # each once a traceback, an abort, a hang, or taken in silence
    (["model=3"], "model=3"),
    (["experiment=null"], "experiment=null"),
    (["position=[]"], "position=[]"),
    (["position=${nope}"], "position=${nope}"),
    (["hydra=3"], "hydra=3"),
    (["hydra.run.dir=/dev/null/x"], "hydra.run.dir"),
    (["compile=3"], "compile=3"),
    (["init_from="], "init_from="),
    ([f"resume={'x' * 5000}"], "resume="),
    (["device=meta"], "device=meta"),
    (["data.cache_dir="], "data.cache_dir"),
    ([f"model.n_layers={10**9}"], "model.n_layers"),
    (["model.d_model=131073", "model.n_heads=1"], "model.d_model"),
    ([f"tokenizer.vocab_size={2**40}"], "tokenizer.vocab_size"),
    (["position=alibi", "position.exponent=1e308"], "position.exponent"),
    (["position=rope_yarn", "position.alpha=1e-320"], "position.alpha"),
    (["position=rope_by_parts", "position.beta=1e308"], "position.beta"),
    (["position=fox", "position.bias=1e300"], "position.bias"),
    (["position=xpos", "position.scale_base=1e-308"], "position.scale_base"),
    (["position=learned", f"position.rows={2**62}"], "position.rows"),
    (["position=sandwich", f"position.width={2**40}"], "position.width"),
    (["tracker=wandb", f"tracker.tags=[{'x' * 65}]"], "tracker.tags"),
    (["tracker=wandb", f"tracker.project={'x' * 129}"], "tracker.project"),
    (["optim.lr=nan"], "optim.lr"),
    (["position.base=inf"], "position.base"),
]
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

    @many(40)
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


def test_names_that_a_run_leaves_can_be_pasted_back(smoke, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [*SMALLEST, "data=files", *corpus, "tokenizer=bytes"]
    assert command("train", *arguments) == 0
    names = [str(path) for path in Path().rglob("*")]
    assert names and all(re.fullmatch(r"[A-Za-z0-9._/-]+", name) for name in names), names
    (folder,) = Path("outputs").glob("*/*")
    assert command("train", f"resume={folder}", "train.steps=2") == 0


@pytest.mark.parametrize("name", ["data dir/ü=1,(2)", "a[b]", "数据", "it's", "~x"])
def test_a_run_may_lie_in_a_folder_of_any_name(name, smoke, tmp_path, monkeypatch, capfd):
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(smoke("rope"))
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    assert command("generate", f'run="{name}"', "prompt=shin", "tokens=3") == 0
    assert capfd.readouterr().out.startswith("shin")


@pytest.mark.parametrize("value", ["12e5", "007", "1_000", "true", "[x", "a: b", "0x1f"])
@pytest.mark.parametrize("key", ["tracker.group", "tracker.project", "data.text_field", "device"])
def test_what_is_a_text_is_what_was_typed(key, value, monkeypatch):
    """As a list cannot be: there, what to type is said."""
    seen = []
    run = lambda config, given, world: seen.append(config)  # noqa: E731
    monkeypatch.setattr(sys, "argv", ["train.py", "data=files", f"{key}={value}"])
    cli.command("train", TrainConfig, run)()
    config = dataclasses.asdict(seen[0])
    group, _, name = key.partition(".")
    assert (config[group][name] if name else config[group]) == value


def test_a_list_of_texts_says_how_to_quote(corpus, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    refused("train", [*corpus, "tracker.tags=[12e5]"], r'in quotes, in a list ["..."]', capfd)


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
def test_quotes_hold_any_text(text):
    parsed = OverridesParser.create().parse_override(f"key={in_quotes(text)}").value()
    assert parsed == text or "\n" in text or "\r" in text
