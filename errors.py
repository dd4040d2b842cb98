"""The one exception that is meant for the person at the keyboard.

Everything that a user can get wrong (a key, a value, a file, a missing network) is raised as `UserError` with one line
that names the key or the file and says what to do; the commands print that line alone and exit with 1, and likewise
what the machine refuses (configs/cli.py). Any other exception is a bug of ours and keeps its traceback.
"""


class UserError(ValueError):
    """One line: what is wrong, by name, and what to do about it."""


def printable(text: str) -> str:
    """The text on one line, safe to print: what is no character to look at (a line end, an escape, a change of
    direction, half a surrogate pair) is spelled out, as `\\n`.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
