"""From a command line to a checked configuration object: the only file that knows Hydra.

Hydra composes YAML files and overrides; here the result is held against the dataclasses of configs/schema.py
once more, since Hydra accepts unknown keys after a `+`. A UserError, at any depth of the program, becomes one
line and exit code 1.
"""

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.check import nearest
from configs.schema import TrainConfig
from errors import UserError
from training.distributed import World
from training.ranks import launched

CONFIGS = Path(__file__).parent


class OneLine(CompactHydraException):
    """How a job of a sweep fails: Hydra runs the others, then prints this without a traceback and exits with 1."""


Run = Callable[[Any, list[str], World], None]


def command(name: str, schema: type, run: Run) -> Callable[[], None]:
    """The entry point of one command.

    run gets the configuration as an instance of `schema`, the dotted keys that the command line gave, and the
    processes that run it.
    """
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    OmegaConf.register_new_resolver("free", free_folder, use_cache=True, replace=True)

    def main() -> None:
        warnings.formatwarning = one_line
        world = World()
        try:
            world = launched()
            sys.argv[1:] = [opened(argument, schema) for argument in sys.argv[1:]]
        except UserError as error:
            world.failed(f"error: {error}")
            sys.exit(1)
        world.start()
        if not world.main:  # rank 0 makes the run folder
            sys.argv += ["hydra.run.dir=.", "hydra.sweep.subdir=."]

        @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=name)
        def job(config) -> None:
            world.begin()
            try:
                run(typed(config, schema), given_keys(HydraConfig.get().overrides.task), world)
            except UserError as error:
                world.failed(f"error: {error}")
                if HydraConfig.get().mode is RunMode.RUN:
                    sys.exit(1)
                world.regroup()
                raise OneLine(str(error)) from None  # the sweep's other jobs go on
            except Exception:
                world.crashed()
                raise

        try:
            job()
        except KeyboardInterrupt:  # where nothing has to be saved first
            world.leave()
            sys.exit(130)
        except SystemExit:
            world.leave()
            raise
        world.close()

    return main


def one_line(message: Warning | str, kind: type[Warning], file: str, line: int, _=None) -> str:
    """A warning of ours as a person reads it; others keep the place that they come from."""
    return f"warning: {message}\n" if kind is UserWarning else f"{file}:{line}: {message}\n"


def alone(run: Callable[[Any, list[str]], None]) -> Run:
    """For a command that has no use for several processes."""

    def checked(config: Any, given: list[str], world: World) -> None:
        if world.size > 1:
            raise UserError("this command takes one process: start it without torchrun")
        run(config, given)

    return checked


def opened(argument: str, schema: type) -> str:
    """An override as Hydra shall read it: any key may be set, since `refuse_unknown` and the groups' own checks say
    what a wrong one should have been, and since a trained scheme's keys are known to its run folder alone.

    A key that shapes the trained model is refused by name where `schema` is not the training's.
    """
    key, equals, _ = argument.partition("=")
    root = key.lstrip("+~").split(".")[0]
    if not equals or not root.isidentifier() or root == "hydra":
        return argument
    theirs = {f.name for f in dataclasses.fields(TrainConfig)}
    if root in theirs - {f.name for f in dataclasses.fields(schema)}:
        raise UserError(
            f"{key} belongs to the trained run and cannot be changed here: leave it out"
        )
    chosen = key in {folder.name for folder in CONFIGS.iterdir() if folder.is_dir()}  # group=option
    return argument if chosen or key[0] in "+~" else f"++{argument}"


def given_keys(overrides: list[str]) -> list[str]:
    return [override.partition("=")[0].lstrip("+~") for override in overrides]


def typed(config: Any, schema: type) -> Any:
    """The composed configuration as an instance of `schema`; UserError names an unknown key or a wrong type."""
    try:
        values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        assert isinstance(values, dict)
        refuse_unknown(values, schema, "")
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0]
        raise UserError(f"{error.full_key}: {reason}" if error.full_key else reason) from None


def refuse_unknown(values: dict, schema: type, prefix: str) -> None:
    fields = {f.name: f.type for f in dataclasses.fields(schema)}
    for key, value in values.items():
        if key not in fields:
            raise UserError(f"{prefix}{key} is no known key{nearest(str(key), fields)}")
        kind = fields[key]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
            refuse_unknown(value, kind, f"{prefix}{key}.")


def free_folder(path: str) -> str:
    """`path`, or with _1, _2, ... behind it where that exists."""
    candidate, n = path, 0
    while os.path.exists(candidate):
        n += 1
        candidate = f"{path}_{n}"
    return candidate
