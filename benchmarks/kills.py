"""Attempts of train.py that end at a moment of our choice: forked, watched, killed.

An attempt is the command itself, train.main in a process of its own, forked from one that has imported everything, so
that it begins at once. What is unusual: where a kill lands is seen, not guessed. Just before, faulthandler writes the
stack of the process into a file, from C and without touching anything of Python.
"""

import faulthandler
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path

ASK = signal.SIGRTMIN  # for the stack; nothing else uses it
# What a stack says, the first that fits
PHASES = {
    "saving": r'(saving|train)\.py", line \d+ in (save|prune|write_\w+)',
    "preparing data": r'prepare\.py", line \d+ in prepare_',
    "evaluating": r'validation\.py", line \d+ in measure',
    "finding and reading a checkpoint": r'(checkpoint|resume)\.py", line \d+ in (load|verify|find|newest|start)',
    "training": r'(train|journal|guard)\.py", line \d+ in (step|log|run|training|check)',
    "starting": r"",
}


def start(folder: Path, arguments: list[str]) -> int:
    """The command in a process of its own, in `folder`, its output in log.txt: the process id.

    Returns when the process can be asked for its stack, which is before it does anything else.
    """
    sys.stdout.flush()
    ready, done = os.pipe()
    child = os.fork()
    if child:
        os.close(done)
        os.read(ready, 1)
        os.close(ready)
        return child
    code = 70  # a bug of this script
    try:
        os.chdir(folder)
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(ASK, file=open("stack.txt", "w"), all_threads=False)  # noqa: SIM115
        os.close(done)
        sys.argv = ["train.py", *arguments]
        code = called()
    finally:
        os._exit(code)


def called() -> int:
    import train

    try:
        train.main()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, flush=True)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def kill(child: int, folder: Path) -> str | None:
    """Ask for the stack, kill; the phase, None where the process ended before."""
    stack = folder / "stack.txt"
    try:
        os.kill(child, ASK)
        until, before, seen = time.monotonic() + 2, "", ""
        while time.monotonic() < until and not (seen.endswith("\n") and seen == before):
            time.sleep(0.0005)  # long enough for all its lines to be there
            before, seen = seen, stack.read_text()
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return None
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        return None
    text = stack.read_text()
    return next(name for name, pattern in PHASES.items() if re.search(pattern, text))


def running(child: int) -> bool:
    """Whether the process still runs; one that ended stays to be waited for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
