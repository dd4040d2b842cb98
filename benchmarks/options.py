"""Command lines of benchmarks, the machine that a number was measured on, and results as they come.

`python -m benchmarks.speed rounds=3 sizes=3M,10M`: `key=value` as the commands of the project take it, against
the fields of a dataclass. What is unusual: nothing here needs Hydra or a YAML library, so that a GPU machine
with torch and NumPy alone can run what it must.
"""

import dataclasses
import errno
import inspect
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_origin, get_type_hints

from configs.check import fit, nearest
from errors import UserError
from revision import revision
from storage import replace_text, writing


class Settings(Protocol):
    out: str  # where results go: a file or a folder


T = TypeVar("T", bound=Settings)
PLACES = {"out", "nanogpt", "litgpt", "lingua"}  # settings that are paths of one machine


def scalar(text: str) -> Any:
    """What YAML makes of an unquoted word: null, true, false, a number or the word."""
    named = {"null": None, "true": True, "false": False}
    if text in named:
        return named[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse(kind: type[T], arguments: Sequence[str]) -> T:
    """The dataclass `kind` with `key=value` set; lists are written a,b,c."""
    types, values = get_type_hints(kind), {}
    for argument in arguments:
        key, given, text = argument.partition("=")
        if not given:
            raise UserError(f"{argument} is no key=value{nearest(key, types)}")
        if key not in types:
            raise UserError(f"{key} is no setting here{nearest(key, types)}")
        if types[key] in (str, str | None):
            values[key] = text
        elif get_origin(types[key]) is list:
            parts = [part for part in text.strip("[]").split(",") if part]
            strings = types[key] == list[str]
            values[key] = fit(key, parts if strings else [*map(scalar, parts)], types[key])
        else:
            values[key] = fit(key, scalar(text), types[key])
    return kind(**values)


def command(kind: type[T], work: Callable[[T], object], about: str | None) -> None:
    """Run `work` with the settings of the command line; errors of the user's are one line."""
    if "--help" in sys.argv[1:]:
        print(about, *explained(kind), sep="\n")
        return
    try:
        work(settings := parse(kind, sys.argv[1:]))
    except UserError as error:
        sys.exit(f"error: {error}")
    print(
        f"done: {settings.out}; `python -m docs.readme` puts docs/results into docs/performance.md"
    )


def explained(kind: type) -> list[str]:
    """Each setting as it would be given, and the comment that stands behind its field in the source."""
    lines = inspect.getsource(kind).splitlines()
    comments = {line.partition(":")[0].strip(): line.partition("  # ")[2] for line in lines}
    defaults = dataclasses.asdict(kind())  # type: ignore[call-overload]
    return [f"  {f'{k}={written(v)}':<40} {comments[k]}".rstrip() for k, v in defaults.items()]


def written(value: Any) -> str:
    """A value as `parse` reads it; what nobody gave is left empty."""
    if isinstance(value, list):
        return ",".join(map(written, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def machine(device: str = "cpu") -> dict[str, Any]:
    """What a reader must know to compare a number with one from elsewhere."""
    import torch

    found = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": revision("benchmarks", "model", "data", "training"),
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    return found


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def begin(settings: Settings, files: Sequence[str], sizes: Sequence[str]) -> None:
    """UserError, before any work, where a report could not be saved or toy sizes would take a real one's place."""
    if "tiny" in sizes and settings.out == type(settings).out:
        raise UserError(f"{settings.out} is for real sizes: set out= for tiny ones")
    for path in map(Path, files):
        with writing(path):
            with suppress(FileExistsError):
                path.parent.mkdir(parents=True, exist_ok=True)
            wrong = errno.EISDIR if path.is_dir() else 0 if path.parent.is_dir() else errno.ENOTDIR
            if wrong:
                raise OSError(wrong, os.strerror(wrong))


def recorded(settings: Any) -> dict[str, Any]:
    """What a report says of a benchmark's settings: all but the paths."""
    return {k: v for k, v in dataclasses.asdict(settings).items() if k not in PLACES}


def save(path: str | Path, report: dict[str, Any]) -> None:
    """The report so far, whole: called after each part, so that a stop loses only the rest."""
    replace_text(Path(path), json.dumps(report, indent=1, allow_nan=False) + "\n")
