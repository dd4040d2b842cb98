"""Run folders: made once, found again by any command, and enough to rebuild everything.

`config.yaml` in a folder is the fully resolved configuration; the folder is the run's name. Its creation is
exclusive, so that two commands started in the same second never share one.
"""

import dataclasses
import os
import re
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.check import fit
from configs.schema import TrainConfig
from data.tokenizer import Tokenizer
from errors import UserError
from model.config import ModelConfig
from model.transformer import Transformer
from storage import replace_text
from training import checkpoint

OUTPUTS = Path("outputs")


def create(folder: Path, config: TrainConfig, tokenizer: Tokenizer) -> None:
    """Make `folder` the run of `config`, and the newest run."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / "config.yaml").open("x") as file:
            file.write(config_text(config))
    except FileExistsError:
        raise UserError(f"{folder} already holds a run: start again, or resume={folder}") from None
    tokenizer.save(folder / "tokenizer.json")
    mark_latest(folder)


def config_text(config: TrainConfig) -> str:
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def mark_latest(folder: Path) -> None:
    OUTPUTS.mkdir(exist_ok=True)
    replace_text(OUTPUTS / ".latest", str(folder))


def locate(run: str, key: str = "run") -> Path:
    """The folder that `latest` or a path stands for; errors name the `key` that said so."""
    if run == "latest":
        pointer = OUTPUTS / ".latest"
        if not pointer.exists():
            raise UserError(
                f"{key}=latest: no run here yet; train one: python train.py position=rope"
            )
        run = pointer.read_text().strip()
    if not os.path.isfile(Path(run, "config.yaml")):  # False, too, for a name that no file can have
        raise UserError(f"{key}={run} is no run folder: it has no config.yaml")
    return Path(run)


def locate_all(runs: Any) -> list[Path]:
    """The folders of a path, a glob or a list of them; a glob keeps folders with a config.yaml alone."""
    found = []
    for run in [runs] if isinstance(runs, str) else runs:
        if any(c in run for c in "*?["):
            matches = [p for p in map(Path, sorted(glob(run))) if (p / "config.yaml").exists()]
            if not matches:
                raise UserError(f"run={run} matches no run folder")
            found += matches
        else:
            found.append(locate(run))
    return list(dict.fromkeys(found))


def load_config(folder: Path) -> TrainConfig:
    """The configuration of a run, held against today's schema."""
    path = folder / "config.yaml"
    try:
        values = yaml.safe_load(path.read_text())
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), values))
    except (OSError, yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is no configuration of a run: {reason}") from None
    assert isinstance(config, TrainConfig)
    return config


def newest_unfinished(config: TrainConfig) -> Path | None:
    """The newest run of equal configuration that has not taken all its steps."""
    wanted = dataclasses.replace(config, resume=None)
    configs = sorted(OUTPUTS.glob("*/*/config.yaml"), key=lambda p: p.stat().st_mtime)
    for folder in (path.parent for path in reversed(configs)):
        try:
            if load_config(folder) == wanted and steps_taken(folder) < config.train.steps:
                return folder
        except UserError:  # another version's run, or one without a checkpoint
            continue
    return None


def steps_taken(folder: Path) -> int:
    """By the last checkpoint of the run."""
    return checkpoint.step_of(checkpoint.find(folder, "last"))


def output_folder() -> Path:
    """Where Hydra puts this job, relative to here if it is below: short enough to paste back as an override."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


# What a resumed run may be given anew: everything else is its own configuration.
FREE = ("resume", "device", "compile", "tracker")  # and train.steps


def open_run(config: TrainConfig, given: list[str], fresh: Path) -> tuple[Path, TrainConfig, bool]:
    """The folder to write to, the configuration that counts, and whether a run goes on there.

    given: dotted keys of the command line; fresh: the folder that a new run would take.
    """
    folder = None
    if config.resume == "auto":
        folder = newest_unfinished(config)
    elif config.resume is not None:
        folder = locate(config.resume, "resume")
    if folder is None:
        return fresh, dataclasses.replace(config, resume=None), False
    saved = load_config(folder)
    for key in given if config.resume != "auto" else []:
        if key.split(".")[0] not in ("hydra", *FREE) and key != "train.steps":
            own = look_up(saved, key)
            if own is None or own != look_up(config, key):
                raise UserError(f"{key} is the run's own where resume={folder}: leave it out")
    for key in ("device", "compile"):
        if key in given:
            setattr(saved, key, getattr(config, key))
    if "tracker" in given:
        saved.tracker = config.tracker
    own = [key for key in config.tracker if f"tracker.{key}" in given]
    saved.tracker |= {key: config.tracker[key] for key in own}
    if "train.steps" in given:
        saved.train.steps = config.train.steps
    with suppress(OSError):
        fresh.rmdir()  # Hydra made it for a new run
    reached = steps_taken(folder)
    if reached >= saved.train.steps:
        raise UserError(
            f"resume={folder} has taken all its {reached} steps: train.steps={2 * reached} would go on"
        )
    replace_text(folder / "config.yaml", config_text(saved))
    mark_latest(folder)
    return folder, saved, True


def look_up(config: TrainConfig, key: str) -> Any:
    """The value of a dotted key, None where it is no key of a configuration (an experiment)."""
    value: Any = dataclasses.asdict(config)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def group_name(folder: Path) -> str:
    """One name for the runs of a sweep and their evaluations: when it was started."""
    return re.sub(r"_\d+$", "", folder.name)


def start_from(folder: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """init_from: all weights of another run's last checkpoint; those of position schemes where they fit."""
    if Tokenizer.load(folder / "tokenizer.json").hash != tokenizer.hash:
        raise UserError(
            f"init_from={folder} was trained with another tokenizer: its embeddings are of other tokens"
        )
    checkpoint.load_weights(model, checkpoint.find(folder, "last"), own_schemes=True)


def build_model(config: TrainConfig, vocab_size: int) -> Transformer:
    """On the CPU and not initialised yet; UserError names the key of a shape or a scheme that cannot be built."""
    settings = dataclasses.asdict(config.model)
    for field in dataclasses.fields(ModelConfig):
        if field.name in settings:
            settings[field.name] = fit(f"model.{field.name}", settings[field.name], field.type)
    shape = ModelConfig(vocab_size=vocab_size, context_length=config.context_length, **settings)
    return Transformer(shape, config.position)
