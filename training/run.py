"""Run folders: made once, found again by any command, and enough to rebuild everything.

`config.yaml` in a folder is the fully resolved configuration; the folder is the run's name. Its creation is
exclusive, so that two commands started in the same second never share one.
"""

import dataclasses
import os
import re
import warnings
from contextlib import ExitStack
from glob import glob
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig

from configs.check import fit, made
from configs.schema import TrainConfig
from data.prepare import TokenSplit
from data.tokenizer import Tokenizer
from errors import UserError
from model.config import ModelConfig
from model.position import POSITIONS
from model.transformer import Transformer
from storage import digest, flush, replace_text, writing
from training import checkpoint

OUTPUTS = Path("outputs")


def create(folder: Path, config: TrainConfig, tokenizer: Tokenizer, held: ExitStack) -> None:
    """Make `folder` the run of `config`, and the newest run; nobody else trains it until `held` ends."""
    path = folder / "config.yaml"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("xb")
        except FileExistsError:
            raise UserError(
                f"{folder} already holds a run: start again, or resume={folder}"
            ) from None
        with file:
            file.write(config_text(config).encode())
        flush(path)
    with writing(folder / "tokenizer.json"):
        tokenizer.save(folder / "tokenizer.json")
        flush(folder / "tokenizer.json")
    lock(folder, held)
    mark_latest(folder)


def lock(folder: Path, held: ExitStack) -> None:
    """Nobody else trains the run in `folder` until `held` ends, or this process, however it does."""
    try:
        held.enter_context(FileLock(folder / ".lock", timeout=0))
    except Timeout:
        raise UserError(f"{folder} is being trained by another process right now") from None


def rewrite(folder: Path, config: TrainConfig) -> None:
    """The run in `folder` goes on as `config`, and is the newest run."""
    replace_text(folder / "config.yaml", config_text(config))
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
        newest = pointer.read_text().strip()
        if not os.path.isfile(Path(newest, "config.yaml")):
            raise UserError(f"{key}=latest: the newest run was {newest}, and is gone: name another")
        return Path(newest)
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
    """The configuration in a folder (a run's, a checkpoint's), held against today's schema."""
    path = folder / "config.yaml"
    try:
        text = path.read_bytes().decode()
        if "${" in text or not isinstance(values := yaml.safe_load(text), dict):
            raise ValueError("it must be a mapping, with every value written out")
        return made(TrainConfig, values)
    except (OSError, yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is no configuration of a run: {reason}") from None


def open_checkpoint(folder: Path, path: Path) -> tuple[TrainConfig, Tokenizer]:
    """What the whole checkpoint at `path` in a run's folder was saved with."""
    return load_config(path), open_tokenizer(folder, path)


def open_tokenizer(folder: Path, path: Path) -> Tokenizer:
    """The tokenizer of a checkpoint at `path` in a run; the run folder's own copy is for people."""
    own, kept = folder / "tokenizer.json", path / "tokenizer.json"
    if not own.exists() or digest(own) != digest(kept):
        warnings.warn(f"{own} is not the run's; {kept} is used", stacklevel=2)
    return Tokenizer.load(kept)


def output_folder() -> Path:
    """Where Hydra puts this job, relative to here if it is below: short enough to paste back as an override."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def describe(folder: Path, config: TrainConfig, model: Transformer, text: TokenSplit) -> list[str]:
    """A run's sizes, for its first lines."""
    all_, positions = (sum(p.numel() for p in m.parameters()) for m in (model, model.schemes))
    step = config.train.batch_size * config.context_length
    return [
        f"{folder}: {config.position['name']}, {all_:,} parameters ({positions:,} of them positions)",
        f"{len(text.tokens):,} training tokens, {config.train.steps:,} steps of {step:,}",
    ]


def group_name(folder: Path) -> str:
    """One name for the runs of a sweep and their evaluations: when it was started."""
    return re.sub(r"_\d+$", "", folder.name)


def start_from(
    folder: Path, config: TrainConfig, model: Transformer, tokenizer: Tokenizer
) -> list[str]:
    """init_from: all weights of another run's last checkpoint; the scheme's own if it is the same and they fit.

    Returns lines that say what is not as it was there.
    """
    path = checkpoint.find(folder, "last")
    origin, theirs = open_checkpoint(folder, path)
    if theirs.hash != tokenizer.hash:
        raise UserError(
            f"init_from={folder} was trained with another tokenizer: its embeddings are of other tokens"
        )
    notes = []
    if origin.context_length != config.context_length:
        refuse_other_length(folder, origin.context_length, config)
        if origin.model.softmax_scale == config.model.softmax_scale == "log":
            notes.append(
                f"scores are scaled by ln(keys) / ln({config.context_length}), no longer / ln({origin.context_length})"
            )
    for key in ("n_heads", "n_kv_heads", "softmax_scale", "norm_eps"):  # no shape would tell
        mine, its = (getattr(c.model, key) for c in (config, origin))
        if mine != its and key.startswith("n_"):
            raise UserError(
                f"model.{key}={mine}: init_from={folder} has {its}, and its weights are cut so"
            )
        notes += [f"model.{key} is {mine}, no longer {its}"] * (mine != its)
    same = schemes_in(origin.position) == schemes_in(config.position)
    if anew := checkpoint.load_but_schemes(model, path, same):
        notes.append(f"not taken from {folder}, but begun anew: {', '.join(anew)}")
    return notes


def schemes_in(position: dict[str, Any]) -> list[str]:
    return [position["name"], *(layer["name"] for layer in position.get("layers", []))]


def refuse_other_length(folder: Path, length: int, config: TrainConfig) -> None:
    """UserError for a scheme's null that goes by the context: the weights know the one that they were trained at."""
    layers = enumerate(config.position.get("layers", []))
    schemes = {"position": config.position, **{f"position.layers[{i}]": s for i, s in layers}}
    for place, settings in schemes.items():
        for key in POSITIONS[settings["name"]].by_context:
            if settings[key] is None:
                raise UserError(
                    f"{place}.{key}=null goes by this run's context_length={config.context_length}, and "
                    f"init_from={folder} was trained at {length}: give {place}.{key} a number"
                )


def build_model(config: TrainConfig, vocab_size: int) -> Transformer:
    """On the CPU and not initialised yet; UserError names the key of a shape or a scheme that cannot be built."""
    settings = dataclasses.asdict(config.model)
    for field in dataclasses.fields(ModelConfig):
        if field.name in settings:
            settings[field.name] = fit(f"model.{field.name}", settings[field.name], field.type)
    shape = ModelConfig(vocab_size=vocab_size, context_length=config.context_length, **settings)
    return Transformer(shape, config.position)
