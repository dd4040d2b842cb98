"""How far along a long job is: a live bar on a terminal, a plain line now and then elsewhere (log files, pipes).

Both are the same object to the caller: `with show(total, unit) as progress: progress.update(done, text)`.
"""

import sys
import time
from typing import Self


class Lines:
    """One plain line at a time, at most one in `every` seconds, with the time left."""

    def __init__(self, what: str, total: int, start: int = 0, every: float = 10.0):
        self.what, self.total, self.start, self.every = what, max(1, total), start, every
        self.began = time.monotonic()
        self.spoken = -every

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, done: int, text: str = "") -> None:
        now = time.monotonic() - self.began
        if now - self.spoken < self.every and done < self.total:
            return
        self.spoken = now
        left = now * (self.total - done) / max(1, done - self.start)
        self.say(f"{self.what} {done:,}/{self.total:,}  {text}  {clock(left)} left")

    def say(self, line: str) -> None:
        print(line, flush=True)


class Bar(Lines):
    """The same on a terminal: one line that is redrawn."""

    def __enter__(self) -> Self:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        columns = "[bold]{task.description}", BarColumn(), MofNCompleteColumn(), Left()
        self.bar = Progress(*columns, TextColumn("left  {task.fields[text]}"))
        self.bar.start()
        self.task = self.bar.add_task(self.what, total=self.total, completed=self.start, text="")
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, done: int, text: str = "") -> None:
        self.bar.update(self.task, completed=done, text=text)

    def say(self, line: str) -> None:
        self.bar.console.print(line, markup=False, highlight=False)


def show(what: str, total: int, start: int = 0) -> Lines:
    return (Bar if sys.stdout.isatty() else Lines)(what, total, start)


def clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
