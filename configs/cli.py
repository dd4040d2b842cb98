"""From a command line to a checked configuration object: the only file that knows Hydra.

Hydra composes YAML files and overrides into plain values; here they are held against the dataclasses of
configs/schema.py, so that a wrong key or value has one wording whoever finds it. Unusual: Hydra is told to let its
exceptions out, because whatever fails before a command has started is a mistake on the command line. That, a
UserError at any depth of the program and a refusal of the machine (no space, no permission, no memory) become one
line and exit code 1, and a command that was refused leaves no folder behind.
"""

import dataclasses
import errno
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from configs.check import fit, nearest
from configs.schema import TrainConfig
from errors import UserError

CONFIGS = Path(__file__).parent


class Refused(Exception):
    """A job of a sweep that has said why it failed: Hydra runs the others, then the command exits with 1."""


def command(name: str, schema: type, run: Callable[[Any, list[str]], None]) -> Callable[[], None]:
    """The entry point of one command.

    run gets the configuration as an instance of `schema` and the dotted keys that the command line gave.
    """
    OmegaConf.register_new_resolver("free", free_folder, use_cache=True, replace=True)
    started = False

    @hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=name)
    def job(config) -> None:
        nonlocal started
        try:
            settings = typed(config, schema)
            started = True
            run(settings, given_keys(HydraConfig.get().overrides.task))
        except Exception as error:
            drop_empty(Path(HydraConfig.get().runtime.output_dir))
            line = reason(error)
            if line is None:
                raise
            if HydraConfig.get().mode is RunMode.RUN:
                sys.exit(f"error: {line}")
            print(f"error: {line}", file=sys.stderr)
            raise Refused from None  # the sweep's other jobs go on

    def main() -> None:
        nonlocal started
        started = False
        try:
            sys.argv[1:] = [opened(argument, schema) for argument in sys.argv[1:]]
            with let_out():
                job()
        except Refused:
            sys.exit(1)
        except Exception as error:
            line = reason(error)
            if line is None and started:
                raise
            sys.exit(f"error: {naming(sys.argv[1:], line or spoken(error))}")

    return main


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
    if root in theirs - {f.name for f in dataclasses.fields(schema)}:
        raise UserError(
            f"{key} belongs to the trained run and cannot be changed here: leave it out"
        )
    if key.lstrip("+") in {folder.name for folder in CONFIGS.iterdir() if folder.is_dir()}:
        check_option(key, value)
        return argument
    return argument if key[0] in "+~" else f"++{argument}"


def check_option(group: str, value: str) -> None:
    """UserError where a plain word, or one of several to sweep over, is no option of the group."""
    if value.startswith("["):
        raise UserError(f"{group}={value} is a list: name one option")
    options = {path.stem for path in (CONFIGS / group.lstrip("+")).glob("*.yaml")}
    for option in value.split(",") if re.fullmatch(r"[\w.,-]*", value) else []:
        if option not in options:
            raise UserError(f"{group}={option} is unknown{nearest(option, options)}")


def given_keys(overrides: list[str]) -> list[str]:
    return [override.partition("=")[0].lstrip("+~") for override in overrides]


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


def made(schema: type, values: Any, prefix: str) -> Any:
    """An instance of the dataclass from a mapping that has exactly its keys, each value of the field's type."""
    fields = {f.name: f for f in dataclasses.fields(schema)}
    if not isinstance(values, Mapping):
        raise UserError(f"{prefix[:-1]}={values} must be a group of {', '.join(fields)}")
    for key in values:
        if key not in fields:
            raise UserError(f"{prefix}{key} is no known key{nearest(str(key), fields)}")
    arguments = {}
    for key, field in fields.items():
        if key in values and dataclasses.is_dataclass(field.type):
            arguments[key] = made(field.type, values[key], f"{prefix}{key}.")  # type: ignore[arg-type]
        elif key in values:
            arguments[key] = fit(f"{prefix}{key}", values[key], field.type)
        elif field.default_factory is dataclasses.MISSING:
            raise UserError(f"{prefix}{key} is missing")
    return schema(**arguments)


def refuse_odd(key: str, value: Any) -> None:
    """UserError for what no setting can be: a number that is none or overflows, a text that no file can hold."""
    if isinstance(value, Mapping | list):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in parts:
            refuse_odd(f"{key}.{name}", part)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key}={value} must be a finite number")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UserError(f"{key} is too large a number")
    if isinstance(value, str) and (
        "\0" in value or value != value.encode("utf-8", "ignore").decode()
    ):
        raise UserError(f"{key}={value!r} must be text in UTF-8, without NUL")


def free_folder(path: str) -> str:
    """`path`, or with _1, _2, ... behind it where that exists."""
    candidate, n = path, 0
    while os.path.exists(candidate):
        n += 1
        candidate = f"{path}_{n}"
    return candidate


def drop_empty(folder: Path) -> None:
    """Remove what Hydra made for a job that never began: empty folders, up to where we are."""
    with suppress(OSError, ValueError):
        folder.relative_to(Path.cwd())
        while folder != Path.cwd():
            folder.rmdir()
            folder = folder.parent


# What the machine refuses. A missing file is not among them: whoever opens one says which key names it.
REFUSALS = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
}


def reason(error: Exception) -> str | None:
    """One line for the person at the keyboard, or None where the error is a bug of ours."""
    if isinstance(error, UserError):
        return plain(str(error))
    if isinstance(error, OverrideParseException):
        override = error.override.removeprefix("++")
        return plain(
            f"{override}: not readable as key=value ({spoken(error)}); some values need quotes: 'key=\"...\"'"
        )
    if isinstance(error, HydraException):
        return spoken(error)
    if isinstance(error, OSError) and error.errno in REFUSALS:
        return plain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    memory = ("out of memory", "can't allocate memory", "not enough memory")
    if isinstance(error, MemoryError) or any(words in str(error) for words in memory):
        return f"out of memory: take a smaller model, context_length or train.batch_size ({spoken(error)})"
    return None


def spoken(error: BaseException) -> str:
    """What a library says, as one line, without its advice and its search paths."""
    text = str(error).strip() or str(error.__cause__ or type(error).__name__)
    text = re.split(
        r"\n\s*(?:See https|Config search path|full_key:|object_type=)|, possible inter", text
    )[0]
    return plain(text.replace("'++", "'"))


def naming(overrides: list[str], line: str) -> str:
    """The line, with the overrides behind it where it names the key of none."""
    keys = given_keys(overrides)
    if any(key and key.split(".")[0].split("@")[0] in line for key in keys):
        return line
    return plain(f"{line} (given: {' '.join(o.removeprefix('++') for o in overrides)})")


def plain(text: str) -> str:
    """As one line of bearable length that a terminal can show."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    return line if len(line) <= 600 else f"{line[:400]} ... {line[-190:]}"
