"""One line for the person at the keyboard: which exceptions are a refusal, and how each is said.

A UserError says itself. What Hydra and OmegaConf raise about a command line is cut down to what it is about; a
machine that refuses (no space, no permission, no memory) is told from a bug of ours, which keeps its traceback.
"""

import errno
import re

from hydra.errors import HydraException, OverrideParseException

from errors import UserError

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
        fewer = (
            "take fewer tokens at once (train.accumulate, eval.tokens_per_batch) or less context"
        )
        return f"out of memory: {fewer} ({spoken(error)})"
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
    if not overrides:
        return line
    keys = given_keys(overrides)
    roots = [re.escape(key.split(".")[0].split("@")[0]) for key in keys]
    if any(root and re.search(rf"\b{root}\b", line) for root in roots):
        return line
    return plain(f"{line} (given: {' '.join(o.removeprefix('++') for o in overrides)})")


def plain(text: str) -> str:
    """As one line of bearable length that a terminal can show."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(text.split()))
    return line if len(line) <= 600 else f"{line[:400]} ... {line[-190:]}"


def given_keys(overrides: list[str]) -> list[str]:
    return [override.partition("=")[0].lstrip("+~") for override in overrides]
