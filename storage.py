"""Files that are whole or absent: what every writer of results, checkpoints and token files shares."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from errors import UserError


def digest(path: str | Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bounded(path: str | Path, most: int) -> bytes:
    """A file's content; ValueError where it has more than `most` bytes."""
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


def flush(path: Path) -> None:
    """Through to the disk: a file's content, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk, or a folder that is not ours: one line that names the file, and no traceback.

    torch and safetensors hide the system's error in one of their own; anything else is let through.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        behind = error if isinstance(error, OSError) else error.__context__
        if not isinstance(behind, OSError) and "os error" not in str(error):
            raise
        reason = behind.strerror if isinstance(behind, OSError) else None
        raise UserError(f"{path} cannot be written: {reason or error}") from None


def replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """A reader sees the old file or the new one, never a part: written beside it, then renamed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with writing(path):
            with open(draft, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
            flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    replace(path, lambda file: file.write(text.encode()))


def drop_empty(folder: Path) -> None:
    """Remove the folder if it is empty, then those above that it leaves empty, up to where we are."""
    folder = folder.absolute()
    with suppress(OSError, ValueError):
        folder.relative_to(Path.cwd())
        while folder != Path.cwd():
            folder.rmdir()
            folder = folder.parent
