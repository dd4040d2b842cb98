"""Everything about a GPU in one command of at most eight minutes: is it right there, and how fast.

python -m benchmarks.gpu                       # prints, and writes docs/results/gpu.jsonl line by line
python -m benchmarks.gpu parts=fold,flex       # some parts alone
python -m benchmarks.gpu device=cpu tiny=true out=toy.jsonl   # toy sizes, to see that every part runs

Needs torch, NumPy and pytest and nothing else of the project's requirements. What is unusual: it expects to
fail somewhere. Each case is run for itself; an exception becomes a line of the results and the next case runs.
Time is shared out among the parts by their weights, a case that would start too late is written down as
skipped, and one that takes too long is stopped.
"""

import gc
import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_attention, gpu_models
from benchmarks.gpu_models import Bench, Cases
from benchmarks.options import command, machine
from errors import UserError
from revision import ROOT

GRACE = 30.0  # seconds that a case may take beyond its part's share


@dataclass
class Settings:
    out: str = "docs/results/gpu.jsonl"
    device: str = "cuda"  # cpu is for trying it out, with tiny=true
    parts: list[str] = field(default_factory=list)  # none given: all
    minutes: float = 8.0  # of which each part has its share
    tiny: bool = False  # toy sizes


def tests(bench: Bench) -> Cases:
    """The project's own tests that need a GPU, in a process of their own."""

    def run() -> dict[str, Any]:
        words = [sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-rfE", "--tb=line"]
        try:
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired as late:
            said = late.stdout or b""
            said = said if isinstance(said, str) else said.decode(errors="replace")
            return {"exit": None, "said": said.splitlines()[-40:]}
        said = (done.stdout + done.stderr).strip().splitlines()
        return {"exit": done.returncode, "result": (said or [""])[-1], "said": said[-60:]}

    yield {"case": "pytest"}, run


PARTS = {  # in this order, with the weight of their share of the time; what is left goes to the last
    "ceiling": (20, gpu_models.ceiling),
    "tests": (110, tests),
    "training": (100, gpu_models.training),
    "fold": (25, gpu_attention.fold),
    "flex": (50, gpu_attention.flex),
    "evaluation": (50, gpu_models.evaluation),
    "fp16": (30, gpu_models.half),
    "decode": (15, gpu_models.decode),
    "schemes": (110, gpu_models.schemes),
}


class OutOfTime(Exception):
    pass


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raises OutOfTime after so many seconds, where the system has alarms."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def ring(*_: object) -> None:
        raise OutOfTime(f"stopped after {seconds:.0f} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Journal:
    """Rows, each on the disk and on the screen as soon as it is known."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")

    def write(self, **row: Any) -> None:
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        print("  ".join(f"{key}={shown(value)}" for key, value in row.items()), flush=True)


def shown(value: Any) -> str:
    if isinstance(value, list):
        return "\n    " + "\n    ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_part(name: str, cases: Cases, journal: Journal, share: float, end: float) -> None:
    """Cases in turn until the part's share (seconds) is used up; nothing after `end` (monotonic)."""
    until = time.monotonic() + share
    for about, work in cases:
        left = min(until, end) - time.monotonic()
        if left <= 0:
            journal.write(part=name, **about, skipped="out of time")
            continue
        try:
            with limit(min(left + GRACE, end - time.monotonic())):
                found = work()
        except Exception as error:  # whatever it is: written down, and the next case runs
            said = [line[:300] for line in traceback.format_exception(error)[-3:]]
            found = {"error": f"{type(error).__name__}: {error}"[:500], "traceback": said}
        journal.write(part=name, **about, **found)
        tidy()


def tidy() -> None:
    torch._dynamo.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def measure(settings: Settings) -> None:
    end = time.monotonic() + 60 * settings.minutes
    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "no CUDA device here; device=cpu tiny=true out=<file> shows that every part runs"
        )
    if settings.out == Settings.out and (settings.tiny or not settings.device.startswith("cuda")):
        raise UserError(f"{settings.out} is for a GPU's real sizes: set out=")
    for name in settings.parts:
        if name not in PARTS:
            raise UserError(f"parts={name} is unknown: there is {', '.join(PARTS)}")
    if settings.device.startswith("cuda:"):
        torch.cuda.set_device(settings.device)  # whose clock and memory are asked
    bench = Bench(torch.device(settings.device), settings.tiny)
    chosen = {name: PARTS[name] for name in settings.parts or PARTS}
    journal = Journal(Path(settings.out))
    journal.write(part="machine", **machine(settings.device))
    weights = sum(weight for weight, _ in chosen.values())
    for name, (weight, part) in chosen.items():
        left = end - time.monotonic()
        run_part(name, part(bench), journal, left * weight / weights, end)
        weights -= weight
    journal.write(part="end", seconds=60 * settings.minutes - (end - time.monotonic()))


if __name__ == "__main__":
    command(Settings, measure, __doc__)
