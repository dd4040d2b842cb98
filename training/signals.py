"""SIGTERM and SIGINT (Ctrl-C): the first asks a run to stop, the second stops it at once.

Inside `deferred` the first signal only sets `asked`, for a loop that finishes its step, saves and then calls
`leave`. Anywhere else (preparing data, uploading at the end) there is nothing to finish, and it ends the
program where it is. The exit code is the shell's, 128 + the signal's number: 143 or 130. It travels as a
SystemExit, which no `except Exception` on the way takes for a failure of one job: a sweep stops as well.

Of several processes all stop after the same step, whichever was asked. There the second signal means nothing:
torchrun passes on a Ctrl-C that the terminal has sent to all of them already (and kills what does not end).
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from training.distributed import World


class Stop:
    """`with Stop(world) as stop:` listens; handlers of before are back afterwards."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.signal: signal.Signals | None = None
        self.otherwise = "stopped before the first step: there is nothing to save"
        self._deferred = False

    @property
    def asked(self) -> bool:
        """Has a signal come to this process?"""
        return self.signal is not None

    def agreed(self) -> bool:
        """Has one come to any process? All of them ask, once a step."""
        stop = self.world.any(self.asked)
        if stop and self.signal is None:
            self.signal = signal.SIGTERM
        return stop  # not what `asked` says by now: the others have heard the answer of before

    @contextmanager
    def deferred(self) -> Iterator[None]:
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def leave(self, said: str) -> None:
        """Where a signal has come: say what was saved and end with its exit code."""
        if self.signal is not None:
            self._say(f"{self.signal.name}: {said}")
            raise SystemExit(128 + self.signal)

    def __enter__(self) -> Self:
        self._before = {n: signal.signal(n, self._handle) for n in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked and self.world.size > 1:
            return
        if self.asked:
            if sys.stdout.isatty():
                self._say("\x1b[?25h")  # the cursor that a progress bar hides
            os._exit(128 + number)
        self.signal = signal.Signals(number)
        if not self._deferred:
            self.leave(self.otherwise)
        again = "; once more stops at once" if self.world.size == 1 else ""
        self._say(f"{self.signal.name}: finishing this step, then saving{again}")

    def _say(self, line: str) -> None:
        if self.world.main:
            os.write(2, f"{line}\n".encode())  # print may be where the signal has interrupted it
