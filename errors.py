"""The one exception that is meant for the person at the keyboard.

Everything that a user can get wrong (a key, a value, a file, a missing network) is raised as `UserError` with one line
that names the key or the file and says what to do; the commands print that line alone and exit with 1, and likewise
what the machine refuses (configs/cli.py). Any other exception is a bug of ours and keeps its traceback.
"""


class UserError(ValueError):
    """One line: what is wrong, by name, and what to do about it."""
