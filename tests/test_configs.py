"""Every option of every group composes and builds; everything else stops with one line that names the key."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, SMALL, command

from configs.check import check
from configs.schema import TrainConfig
from errors import UserError
from runs.config import load_config
from training import run

CONFIGS = ROOT / "configs"
OPTIONS = {
    g: sorted(p.stem for p in (CONFIGS / g).glob("*.yaml"))
    for g in ("model", "optim", "experiment")
}


def train_once(tmp_path, monkeypatch, *overrides: str) -> int:
    monkeypatch.chdir(tmp_path)
    return command("train", *SMALL, *overrides, once=False)  # as Hydra does it


def named_groups():
    from data.corpora import CORPORA
    from data.tokenizer import TOKENIZERS
    from model.position import POSITIONS
    from training.tracker import TRACKERS

    tables = {"position": POSITIONS, "data": CORPORA, "tokenizer": TOKENIZERS, "tracker": TRACKERS}
    for group, table in tables.items():
        for path in sorted((CONFIGS / group).glob("*.yaml")):
            yield pytest.param(group, table, path, id=f"{group}={path.stem}")


@pytest.mark.parametrize(("group", "table", "path"), [*named_groups()])
def test_yaml_keys_are_the_keywords_of_what_the_name_builds(group, table, path):
    settings = yaml.safe_load(path.read_text())
    assert path.stem in table, f"{group}/{path.stem}.yaml has no row in its table"
    assert settings["name"] == path.stem
    assert check(group, table, settings).keys() == settings.keys() - {"name"}
    for key in settings.keys() - {"name"}:
        rest = {k: v for k, v in settings.items() if k != key}
        with pytest.raises(UserError, match=rf"{group}\.{key}"):
            check(group, table, rest)


@pytest.mark.parametrize(
    "path", sorted((CONFIGS / "position").glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_null_that_stands_for_the_context_is_declared(path):
    """So that `init_from` at another length asks for a number.

    A table's rows show in a weight's shape, and `extend` goes by no context.
    """
    from model.position import POSITIONS

    settings = yaml.safe_load(path.read_text())
    nulls = {key for key, value in settings.items() if value is None} - {"rows", "extend"}
    assert nulls == set(POSITIONS[settings["name"]].by_context)


@pytest.mark.parametrize(
    ("group", "option"), [(g, o) for g in ("model", "optim") for o in OPTIONS[g]]
)
def test_options_compose_and_build(group, option):
    from hydra import compose, initialize_config_dir

    import train  # noqa: F401  registers the schema
    from configs.cli import typed

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = typed(compose("train", [f"{group}={option}"]), TrainConfig)
    import torch

    with torch.device("meta"):
        assert run.build_model(config, vocab_size=257).config.d_model == config.model.d_model


@pytest.mark.parametrize("option", OPTIONS["experiment"])
def test_experiments_compose(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command("train", f"experiment={option}", "--cfg", "job") == 0
    assert yaml.safe_load(capsys.readouterr().out)["train"]["steps"] > 0


MALFORMED = {
    "train.stepz=3": "train.stepz is no known key; did you mean steps?",
    "sed=3": "sed is no known key; did you mean seed?",
    "+train.stepz=3": "train.stepz is no known key; did you mean steps?",
    "+modle=tiny": "modle is no known key; did you mean model?",
    "train.steps=abc": "train.steps",
    "train.steps=0": "train.steps=0",
    "optim.lr=fast": "optim.lr",
    "optim.lr=-1": "optim.lr=-1",
    "optim.clip=0": "optim.clip",
    "position=rop": "position=rop is unknown; did you mean rope?",
    "position.bas=3": "position.bas is no setting of rope; did you mean base?",
    "+position.bas=3": "position.bas is no setting of rope; did you mean base?",
    "position.base=abc": "position.base=abc must be a number",
    "position.base=-1": "position.base=-1",
    "position.layout=halves": "position.layout=halves must be one of split_half, interleaved",
    "data.train=3": "data.train=3 must be",
    "+data.extra=1": "data.extra",
    "tokenizer.vocab_size=many": "tokenizer.vocab_size=many",
    "model.n_heads=5": "model.n_heads=5 must divide model.d_model=32",
    "model.softmax_scale=loud": "model.softmax_scale=loud",
    "model.d_model=null": "model.d_model",
    "train.accumulate=3": "train.accumulate=3 must divide train.batch_size=8",
    "train.position_range=9": "train.position_range=9 must be at least context_length=32",
    "seed=-1": "seed=-1",
    "position=learned train.position_range=99": "defined for 32 positions (position.rows), not for 99",
    "precision=fp8": "precision=fp8",
    "device=quantum": "device=quantum",
    "context_length=0": "context_length=0",
    "resume=nowhere": "resume=nowhere",
    "init_from=nowhere": "init_from=nowhere",
}


@pytest.mark.parametrize(("override", "message"), MALFORMED.items())
def test_mistakes_stop_with_one_line(override, message, tmp_path, monkeypatch, capfd, corpus):
    assert train_once(tmp_path, monkeypatch, *corpus, *override.split()) == 1
    said = capfd.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert said.startswith("error: ") and len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "something was left behind"


def test_a_new_run_never_shares_a_folder(tmp_path, monkeypatch, corpus, capfd):
    name = "hydra.run.dir=outputs/x/y"
    assert train_once(tmp_path, monkeypatch, *corpus, name, "train.steps=1") == 0
    before = {p: p.read_bytes() for p in Path(tmp_path).rglob("*") if p.is_file()}
    assert train_once(tmp_path, monkeypatch, *corpus, name, "train.steps=1") == 1
    assert "outputs/x/y already holds a run" in capfd.readouterr().err
    assert before == {p: p.read_bytes() for p in before}


def test_config_in_the_folder_is_the_whole_configuration(smoke):
    folder = smoke("rope")
    config = load_config(folder)
    assert dataclasses.asdict(config) == yaml.safe_load((folder / "config.yaml").read_text())
    assert "${" not in (folder / "config.yaml").read_text()


def test_help_is_quick_and_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys; sys.argv = ['train.py', '--help']\n"
        "import train\n"
        "try: train.main()\n"
        "finally: print(sorted({'torch', 'wandb', 'datasets', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("[]\n"), done.stderr
    assert "python train.py position=rope" in done.stdout
