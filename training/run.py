"""Run folders: made once, found again by any command, and enough to rebuild everything.

`config.yaml` in a folder is the fully resolved configuration; the folder is the run's name. Its creation is
exclusive, so that two commands started in the same second never share one.
"""

import dataclasses
import re
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig

from configs.check import fit
from configs.schema import TrainConfig
from data.prepare import TokenSplit
from data.tokenizer import Tokenizer
from errors import UserError
from model.config import ModelConfig
from model.position import POSITIONS
from model.transformer import Transformer
from runs.config import config_text, load_config
from runs.find import mark_latest, override, self_contained
from storage import digest, flush, replace_text, writing
from training import checkpoint


def create(folder: Path, config: TrainConfig, tokenizer: Tokenizer, held: ExitStack) -> None:
    """Make `folder` the run of `config`, and the newest run; nobody else trains it until `held` ends."""
    path = folder / "config.yaml"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        self_contained(folder)
        try:
            file = path.open("xb")
        except FileExistsError:
            raise UserError(
                f"{folder} already holds a run: start again, or {override('resume', folder)}"
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
