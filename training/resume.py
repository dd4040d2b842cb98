"""Which run a command means: a new one, or one that goes on (`resume=<folder>`, `resume=auto`).

A run goes on in its own folder with its own configuration, from its newest whole checkpoint. What may be given
anew is where it runs and how it is watched (`FREE`), and how long: `train.steps`. Everything else that the
command line says must be what the run has already. Unusual: config.yaml in the run folder is not believed,
only compared: the checkpoint holds the configuration that it was saved with.
"""

import dataclasses
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.schema import TrainConfig
from errors import UserError
from runs.config import flat, load_config
from runs.find import OUTPUTS, find_run, self_contained
from storage import drop_empty
from training import checkpoint, run
from training.optim import learning_rate

# Where and in what portions a run computes and how it is watched, not what it is
FREE = ("resume", "device", "compile", "tracker", "train.accumulate", "data.cache_dir")


@dataclass
class Opened:
    folder: Path
    config: TrainConfig  # the one that counts
    path: Path | None = None  # the checkpoint to go on from; None: a new run
    origin: Path | None = None  # the run whose weights a new one starts from
    notes: list[str] = field(default_factory=list)


def open_run(config: TrainConfig, given: list[str], fresh: Path, held: ExitStack) -> Opened | None:
    """The run to train; None where resume=auto finds it finished.

    given: dotted keys of the command line; fresh: the folder that a new run would take; held: until it ends,
    a run that goes on is this command's alone.
    """
    found = None
    if config.resume == "auto":
        found = equal_run(config, fresh)
        if found is not None:
            run.lock(found[0], held)
            found = found[0], checkpoint.find(found[0], "last")  # which nobody changes now
    elif config.resume is not None:
        folder = find_run(config.resume, "resume")
        run.lock(folder, held)
        found = folder, checkpoint.find(folder, "last")
    if found is None:
        if config.init_from == "latest":
            raise UserError(
                "init_from=latest would be another run tomorrow, in a sweep the job before: name its folder"
            )
        origin = find_run(config.init_from, "init_from") if config.init_from else None
        return Opened(fresh, dataclasses.replace(config, resume=None), origin=origin)
    folder, path = found
    drop_empty(fresh)  # made for a new run
    settled = adopt(own_config(folder, path), config, given, folder)
    step = checkpoint.step_of(path)
    if step >= settled.train.steps:
        done = f"{folder} has taken all its {step} steps"
        if config.resume != "auto":
            raise UserError(f"resume={done}: train.steps={2 * step} would go on")
        print(f"{done}: nothing to do; without resume=auto a new run starts")
        return None
    notes = [f"going on from {path}", *new_length(path, settled)]
    return Opened(folder, settled, path, notes=notes)


def equal_run(config: TrainConfig, fresh: Path) -> tuple[Path, Path] | None:
    """Folder and newest checkpoint of the newest unfinished run of equal configuration, else of the newest finished."""
    wanted, finished = identity(config), None
    files = [*OUTPUTS.glob("*/*/config.yaml"), *fresh.glob("config.yaml")]
    for file in sorted(set(files), key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            if identity(load_config(self_contained(file.parent))) != wanted:
                continue
            if not checkpoint.steps(file.parent / "checkpoints"):
                continue  # killed before it saved anything: there is nothing to go on with
            path = checkpoint.find(file.parent, "last")
        except UserError as error:
            warnings.warn(f"resume=auto passes over {file.parent}: {error}", stacklevel=3)
            continue
        if checkpoint.step_of(path) < config.train.steps:
            return file.parent, path
        finished = finished or (file.parent, path)
    return finished


def own_config(folder: Path, path: Path) -> TrainConfig:
    """The run's configuration, if the checkpoint at `path` says the same but for what a resume may change."""
    own, kept = load_config(folder), load_config(path)
    one, two = (identity(c) | {"train.steps": None} for c in (own, kept))
    for key in sorted(one.keys() | two.keys()):
        here, there = (str(c[key]) if key in c else "nothing" for c in (one, two))
        if here != there:
            raise UserError(
                f"{folder / 'config.yaml'} has {key}={here} where {path} was saved with {there}: the run cannot"
                f" change; copy config.yaml from there"
            )
    return own


def adopt(saved: TrainConfig, config: TrainConfig, given: list[str], folder: Path) -> TrainConfig:
    """The run's configuration with what the command line may change; UserError names what it may not."""
    for key in given if config.resume != "auto" else []:  # auto has compared everything
        if not {key, key.split(".")[0]} & {"hydra", *FREE, "train.steps"}:
            own = look_up(saved, key)
            if own is None or own != look_up(config, key):
                raise UserError(f"{key} is the run's own where resume={folder}: leave it out")
    settled = dataclasses.replace(saved, train=dataclasses.replace(saved.train))
    for key in ("device", "compile", "tracker"):
        if key in given:
            setattr(settled, key, getattr(config, key))
    own = [key for key in config.tracker if f"tracker.{key}" in given]
    settled.tracker = settled.tracker | {key: config.tracker[key] for key in own}
    for key in ("steps", "accumulate"):
        if f"train.{key}" in given:
            setattr(settled.train, key, getattr(config.train, key))
    if "data.cache_dir" in given:
        settled.data = settled.data | {"cache_dir": config.data["cache_dir"]}
    return settled


def new_length(path: Path, config: TrainConfig) -> list[str]:
    """A line about the schedule where the run has another length than when the checkpoint was saved."""
    step, now = checkpoint.step_of(path), config.train.steps
    before = load_config(path).train.steps
    if before == now:
        return []
    old, new = learning_rate(step - 1, before, config.optim), learning_rate(step, now, config.optim)
    return [
        f"train.steps is {now:,}, no longer {before:,}: from here on the learning rate follows the cosine of {now:,}"
        f" steps; it was {old:.3g} at step {step:,} and is {new:.3g} at the next"
    ]


def identity(config: TrainConfig) -> dict[str, Any]:
    """Dotted key -> value of everything that makes a run what it is."""
    settings = dataclasses.asdict(config)
    return {k: v for k, v in flat(settings) if not {k, k.split(".")[0]} & set(FREE)}


def look_up(config: TrainConfig, key: str) -> Any:
    """The value of a dotted key, None where it is no key of a configuration (an experiment)."""
    value: Any = dataclasses.asdict(config)
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
