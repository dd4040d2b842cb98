"""Finding run folders: a path, a glob, or `latest`; and the guard that every folder passes before it is used.

A run folder may have come from somebody else. A link in it would let it read, write and delete what lies elsewhere,
so a folder that holds one is refused, whatever the link is called and wherever it leads.
"""

import glob
import os
import re
import shlex
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from errors import UserError
from storage import replace_text

OUTPUTS = Path("outputs")
WANDB = "wandb"  # links to its own newest run in there, and goes by none of them


def find_run(run: str, key: str = "run") -> Path:
    """The run folder that `latest` or a path stands for; UserError names the `key` that said so."""
    if run == "latest":
        return latest(key)
    if not is_run(run):
        raise UserError(
            f"{key}={run} is no run folder (it has no config.yaml); train one: python train.py position=rope"
        )
    return self_contained(Path(run))


def find_runs(runs: str | Sequence[str], key: str = "run") -> list[Path]:
    """The run folders of a path, a glob or several of them, each once.

    A path that exists is itself whatever characters it has; a glob keeps the folders with a config.yaml.
    """
    found: dict[Path, None] = {}
    for run in [runs] if isinstance(runs, str) else runs:
        if is_pattern(run):
            matches = [Path(p) for p in sorted(glob.glob(run, recursive=True)) if is_run(p)]
            if not matches:
                raise UserError(
                    f"{key}={run} matches no run folder; train one: python train.py position=rope"
                )
            found |= {self_contained(path): None for path in matches}
        else:
            found[find_run(run, key)] = None
    return list(found)


def is_pattern(run: str) -> bool:
    return glob.has_magic(run) and not os.path.lexists(run)


def is_run(path: str | Path) -> bool:
    return os.path.isfile(Path(path, "config.yaml"))  # False, too, for a name that no file can have


def latest(key: str) -> Path:
    pointer = OUTPUTS / ".latest"
    if not pointer.exists():
        raise UserError(f"{key}=latest: no run here yet; train one: python train.py position=rope")
    newest = pointer.read_text(errors="replace").strip()
    if not is_run(newest):
        raise UserError(f"{key}=latest: the newest run was {newest}, and is gone: name another")
    return self_contained(Path(newest))


def mark_latest(folder: Path) -> None:
    OUTPUTS.mkdir(exist_ok=True)
    replace_text(OUTPUTS / ".latest", str(folder))


def self_contained(folder: Path) -> Path:
    """The folder, if everything in it is its own; UserError where it holds a link, a pipe or the like.

    The folder itself may be reached through a link. wandb's own folder is not looked into.
    """
    waiting = [str(folder)]
    while waiting:
        for entry in listed(waiting.pop()):
            try:
                mode = entry.stat(follow_symlinks=False).st_mode
            except FileNotFoundError:  # a checkpoint that training has just pruned
                continue
            if stat.S_ISLNK(mode):
                raise UserError(
                    f"{entry.path} is a link: a run folder holds its own files, so put a copy in its place"
                )
            if stat.S_ISDIR(mode):
                waiting += [entry.path] * (entry.name != WANDB)
            elif not stat.S_ISREG(mode):
                raise UserError(f"{entry.path} is neither a file nor a folder: remove it")
    return folder


def listed(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from None


def override(key: str, folder: Path) -> str:
    """`key=<folder>` as a person can paste it into a shell, whatever characters the path has."""
    path = str(folder)
    plain = re.fullmatch(r"[\w./-]+", path, re.ASCII)
    return f"{key}={path}" if plain else shlex.quote(f"{key}={in_quotes(path)}")


def in_quotes(text: str) -> str:
    """A text as Hydra's grammar of overrides reads it, whatever characters it has."""
    escaped = re.sub(r'(\\*)("|$)', lambda found: 2 * found[1] + found[2].replace('"', '\\"'), text)
    return f'"{escaped}"'


def outside(settings: Iterable[Any]) -> list[str]:
    """The texts among the settings, and in lists of them, that as paths lie outside the working directory."""
    here = Path.cwd().resolve()
    found = []
    listed = [x for value in settings for x in (value if isinstance(value, list) else [value])]
    for path in (x for x in listed if isinstance(x, str)):
        try:
            within = Path(path).expanduser().resolve().is_relative_to(here)
        except (OSError, RuntimeError, ValueError):
            within = False
        if not within:
            found.append(path)
    return found
