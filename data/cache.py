"""Folders in `data.cache_dir` that are whole or not there: documents, tokenizers, token files.

A folder is named by a hash of all that its content depends on. It is filled under another name, written through to
the disk and then renamed, so that a folder that exists is complete; what a killed process left behind is thrown away.
Unusual: every file is held against its SHA-256 each time the folder is opened (a gigabyte a second, so a quarter of a
second for WikiText-103's tokens). A disk or a hand that changes one bit of a token costs a rebuild and never a wrong
number. Processes that want the same folder at once wait for the first.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import filelock

from errors import UserError
from storage import digest, flush

T = TypeVar("T")
MANIFEST = "manifest.json"
NOT_WHOLE = (OSError, ValueError, KeyError, UserError)


def cached(
    cache_dir: str, name: str, build: Callable[[Path], None], opened: Callable[[Path], T]
) -> T:
    """`opened` of the folder, which `build` fills if it isn't there or isn't as it was written."""
    folder = Path(cache_dir, name)
    try:
        return whole(folder, opened)
    except NOT_WHOLE:
        if folder.exists():
            warnings.warn(f"{folder} is not as it was written: it is made again", stacklevel=3)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(f"{folder}.lock").acquire()
    except OSError as error:
        raise UserError(f"data.cache_dir={cache_dir}: can't write there: {error}") from None
    with lock:
        try:
            return whole(folder, opened)  # another process made it meanwhile
        except NOT_WHOLE:
            pass
        fill(folder, build)
        return opened(folder)


def whole(folder: Path, opened: Callable[[Path], T]) -> T:
    """`opened` of the folder; one of NOT_WHOLE where a file is missing, new or other than it was written."""
    if json.loads((folder / MANIFEST).read_text()) != digests(folder):
        raise ValueError("not as it was written")
    return opened(folder)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but the manifest, by its path in the folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)
    return {str(file.relative_to(folder)): digest(file) for file in files}


def fill(folder: Path, build: Callable[[Path], None]) -> None:
    """The folder appears when all of it is on the disk; the caller holds its lock."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # a killed process's
    partial.mkdir()
    try:
        build(partial)
        (partial / MANIFEST).write_text(json.dumps(digests(partial)))
        for path in (*partial.rglob("*"), partial):
            flush(path)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
