"""Which code runs: what a result says of the code that made it."""

import hashlib
import subprocess
from pathlib import Path

from storage import digest

ROOT = Path(__file__).parent


def revision(*parts: str) -> str:
    """git's commit; behind a "+" a digest of the code in `parts` (files and folders here) where it is not the
    commit's, or where there is no git.
    """
    commit = git("rev-parse", "HEAD")
    if commit and not git("status", "--porcelain", "--", *parts):
        return commit
    files = sorted(f for part in parts for f in [ROOT / part, *(ROOT / part).rglob("*.py")])
    code = "".join(digest(f) for f in files if f.is_file())
    return f"{commit or ''}+{hashlib.sha256(code.encode()).hexdigest()[:8]}"


def git(*words: str) -> str | None:
    """What git says here; None where it is not installed, or this is no repository."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
