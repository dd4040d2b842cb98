"""From a command line to a checked configuration object: with refusals.py the only place that knows Hydra.

Hydra composes YAML files and overrides into plain values; here they are held against the dataclasses of
configs/schema.py, so that a wrong key or value has one wording whoever finds it. Unusual: Hydra is told to let its
exceptions out, because whatever fails before a command has started is a mistake on the command line. That, a
UserError at any depth of the program and a refusal of the machine (no space, no permission, no memory) become one
line and exit code 1, and a command that was refused leaves no folder behind.
"""

import dataclasses
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.check import made, nearest, refuse_odd
from configs.refusals import given_keys, naming, plain, reason, spoken
from configs.schema import EvalConfig, TrainConfig
from errors import UserError
from runs.find import in_quotes
from storage import drop_empty
from training.distributed import World
from training.ranks import launched

CONFIGS = Path(__file__).parent


class Refused(Exception):
    """A job of a sweep that has said why it failed: Hydra runs the others, then the command exits with 1."""


Run = Callable[[Any, list[str], World], None]


def command(name: str, schema: type, run: Run) -> Callable[[], None]:
    """The entry point of one command.

    run gets the configuration as an instance of `schema`, the dotted keys that the command line gave, and the
    processes that run it.
    """
    OmegaConf.register_new_resolver("free", free_folder, use_cache=True, replace=True)

    def main() -> None:
        warnings.formatwarning = one_line
        started, world = False, World()

        @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=name)
        def job(config) -> None:
            nonlocal started
            world.begin()
            try:
                settings = typed(config, schema)
                started = True
                run(settings, given_keys(HydraConfig.get().overrides.task), world)
            except (KeyboardInterrupt, SystemExit):
                drop_empty(Path(HydraConfig.get().runtime.output_dir))
                raise
            except Exception as error:
                drop_empty(Path(HydraConfig.get().runtime.output_dir))
                line = reason(error)
                if line is None:
                    world.crashed()
                    raise
                world.failed(f"error: {line}")
                if HydraConfig.get().mode is RunMode.RUN:
                    sys.exit(1)
                world.regroup()
                raise Refused from None  # the sweep's other jobs go on

        try:
            world = launched()
            sys.argv[1:] = [opened(argument, schema) for argument in sys.argv[1:]]
            world.start()
            if not world.main:  # rank 0 makes the run folder
                sys.argv += ["hydra.run.dir=.", "hydra.sweep.subdir=."]
            with let_out():
                job()
        except KeyboardInterrupt:  # where nothing has to be saved first
            world.leave()
            sys.exit(130)
        except SystemExit:
            world.leave()
            raise
        except Refused:
            sys.exit(1)
        except Exception as error:
            line = reason(error)
            if line is None and started:
                raise
            world.failed(f"error: {naming(sys.argv[1:], line or spoken(error))}")
            world.leave()
            sys.exit(1)
        world.close()

    return main


def one_line(message: Warning | str, kind: type[Warning], file: str, line: int, _=None) -> str:
    """A warning of ours as a person reads it; others keep the place that they come from."""
    return (
        f"warning: {plain(str(message))}\n"
        if kind is UserWarning
        else f"{file}:{line}: {message}\n"
    )


def alone(run: Callable[[Any, list[str]], None]) -> Run:
    """For a command that has no use for several processes."""

    def checked(config: Any, given: list[str], world: World) -> None:
        if world.size > 1:
            raise UserError("this command takes one process: start it without torchrun")
        run(config, given)

    return checked


@contextmanager
def let_out() -> Iterator[None]:
    """Hydra shows no exception itself while we are inside: it raises them."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        os.environ |= {} if before is None else {"HYDRA_FULL_ERROR": before}


def opened(argument: str, schema: type) -> str:
    """An override as Hydra shall read it: any key may be set, since `made` and the groups' own checks say
    what a wrong one should have been, and since a trained scheme's keys are known to its run folder alone.

    A key that shapes the trained model is refused by name where `schema` is not the training's.
    """
    key, equals, value = argument.partition("=")
    root = key.lstrip("+~").split(".")[0]
    if equals and root == "hydra" and not value:
        raise UserError(f"{key}= is empty: give a value, or leave it out")
    if not equals or not root.isidentifier() or root == "hydra":
        return argument
    theirs = {f.name for f in dataclasses.fields(TrainConfig)}
    own = {f.name for f in dataclasses.fields(schema)}
    trained_text = schema is EvalConfig and root == "data" and key.lstrip("+") != "data.cache_dir"
    if root in theirs - own or trained_text:
        raise UserError(
            f"{key} belongs to the trained run and cannot be changed here: leave it out"
        )
    if is_text(key.lstrip("+~"), value, schema):
        argument = f"{key}={as_text(value, sweeps=schema is TrainConfig)}"
    if key.lstrip("+") in {folder.name for folder in CONFIGS.iterdir() if folder.is_dir()}:
        check_option(key, value)
        return argument
    return argument if key[0] in "+~" else f"++{argument}"


def is_text(key: str, value: str, schema: type) -> bool:
    """Whether the value of a dotted key is one text, as far as types say so; a list or a path is one without [."""
    root, _, rest = key.partition(".")
    kind = {field.name: field.type for field in dataclasses.fields(schema)}.get(root)
    if rest and root in ("data", "tokenizer", "tracker"):
        kinds = [*group_types(root, rest)]
        return str in kinds and (set(kinds) == {str} or not value.startswith("["))
    if kind == str | list[str]:
        return not value.startswith("[")
    return kind in (str, str | None)


def group_types(group: str, key: str) -> Iterator[Any]:
    """What the options of a group annotate the key with, `str | None` as str."""
    from data.corpora import CORPORA
    from data.tokenizer import TOKENIZERS
    from training.tracker import TRACKERS

    tables: dict[str, dict[str, Any]] = {
        "data": CORPORA,
        "tokenizer": TOKENIZERS,
        "tracker": TRACKERS,
    }
    for option in tables[group].values():
        if (found := inspect.signature(option, eval_str=True).parameters.get(key)) is not None:
            yield str if found.annotation == str | None else found.annotation


def as_text(value: str, sweeps: bool) -> str:
    """A text as Hydra shall read it: what its grammar takes for a number, a list or an error, in quotes.

    sweeps: whether `a,b` means two values.
    """
    try:
        parsed = OverridesParser.create().parse_override(f"key={value}")
        if parsed.is_sweep_override():
            return value if sweeps else in_quotes(value)
        return value if isinstance(parsed.value(), str | None) else in_quotes(value)
    except HydraException:
        return in_quotes(value)


def check_option(group: str, value: str) -> None:
    """UserError where a plain word, or one of several to sweep over, is no option of the group."""
    if value.startswith("["):
        raise UserError(f"{group}={value} is a list: name one option")
    options = {"null", *(path.stem for path in (CONFIGS / group.lstrip("+")).glob("*.yaml"))}
    for option in value.split(",") if re.fullmatch(r"[\w.,-]*", value) else []:
        if option not in options:
            raise UserError(f"{group}={option} is unknown{nearest(option, options - {'null'})}")


def typed(config: Any, schema: type) -> Any:
    """The composed configuration as an instance of `schema`; UserError names an unknown key or a wrong type."""
    try:
        values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        told = spoken(error)
        raise UserError(f"{error.full_key}: {told}" if error.full_key else told) from None
    except RecursionError:
        raise UserError("an interpolation ${...} leads back to itself") from None
    assert isinstance(values, dict)
    for key, value in values.items():
        refuse_odd(str(key), value)
    return made(schema, values, "")


def free_folder(path: str) -> str:
    """`path`, or with _1, _2, ... behind it where that exists."""
    candidate, n = path, 0
    while os.path.exists(candidate):
        n += 1
        candidate = f"{path}_{n}"
    return candidate
