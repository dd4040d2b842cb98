"""Times that can be compared: cases take turns in one process, each when nobody else works.

A case is held against its yardstick just before and just after it (A B A C A ...), where both met the same
machine, and of the rounds' ratios the median is taken. A sample is clean if other processes used less than 8 %
of one core meanwhile; before each the clock waits, up to a minute, for a quiet quarter of a second. Both come
from Linux's /proc/stat; elsewhere nothing is waited for and no sample is called clean or unclean.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

BUSY = 0.08  # of one core, by others: below is quiet
TICK = (
    1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
)  # seconds that Linux counts in
WINDOW, PATIENCE = 0.25, 60.0  # seconds
CEILING = "float32 matrix product"
SIZE, PRODUCTS = 2048, 4  # of the ceiling's matrices; products a sample

Case = Callable[[], object]


def others() -> float | None:
    """CPU seconds that all but this process have used since some moment; None where that is unknown."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    ticks = user + nice + system + irq + softirq + steal
    return ticks * TICK - sum(os.times()[:4])


def quiet(since: float | None, seconds: float) -> bool | None:
    """Whether others did (nearly) nothing for `seconds` since `since`, an answer of `others`."""
    now = others()
    if since is None or now is None:
        return None
    return now - since < max(BUSY * seconds, 2 * TICK)


def wait_until_quiet(patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        since, began = others(), time.monotonic()
        if since is None:
            return
        time.sleep(WINDOW)
        if quiet(since, time.monotonic() - began):
            return


@dataclass(frozen=True)
class Sample:
    seconds: float
    clean: bool | None  # None: nobody knows


def sample(case: Case, patience: float) -> Sample:
    wait_until_quiet(patience)
    since, began = others(), time.perf_counter()
    case()
    seconds = time.perf_counter() - began
    return Sample(seconds, quiet(since, seconds))


Samples = dict[str, list[Sample]]
Pairs = list[tuple[Sample, Sample]]


def take_turns(
    cases: Mapping[str, Case],
    groups: Mapping[str, Sequence[str]],
    rounds: int,
    patience: float = PATIENCE,
) -> tuple[Samples, dict[str, Pairs]]:
    """`rounds` rounds over groups of warm cases: the yardstick before, between and after the others of its group.

    groups: the others by their yardstick; one that is itself a yardstick has its turns as both. Returns the samples
    of each case, and for each but the yardsticks pairs of its own and what its yardstick took around it, the mean
    of the samples before and after: a machine that grows slower over some seconds makes neither look slow.
    """
    taken: Samples = {name: [] for name in cases}
    pairs: dict[str, Pairs] = {name: [] for others in groups.values() for name in others}

    def take(name: str) -> Sample:
        taken[name].append(sample(cases[name], patience))
        return taken[name][-1]

    for number in range(rounds):
        for yardstick, others in groups.items():
            before = take(yardstick)
            for name in others:
                own, after = take(name), take(yardstick)
                pairs[name].append((own, both(before, after)))
                before = after
        print(f"  round {number + 1} of {rounds}", flush=True)
    return taken, pairs


def both(a: Sample, b: Sample) -> Sample:
    known = a.clean is not None and b.clean is not None
    return Sample((a.seconds + b.seconds) / 2, (a.clean and b.clean) if known else None)


def usable(samples: Sequence[Sample]) -> list[bool]:
    """The clean ones, or all if none is (the count of clean ones then says 0)."""
    clean = [s.clean is not False for s in samples]
    return clean if any(clean) else [True] * len(samples)


def seconds(samples: Sequence[Sample]) -> dict[str, Any]:
    """Median, and how many of how many samples were clean (None: unknown)."""
    kept = [s.seconds for s, use in zip(samples, usable(samples), strict=True) if use]
    known = all(s.clean is not None for s in samples)
    return {
        "seconds": statistics.median(kept),
        "fastest": min(kept),
        "slowest": max(kept),
        "clean": sum(bool(s.clean) for s in samples) if known else None,
        "rounds": len(samples),
    }


def ratio(pairs: Pairs) -> dict[str, float]:
    """Time of the first by time of the second: the median over rounds of the round's ratio, the lowest, the highest.

    Of rounds where both were clean, `rounds` of them; of all if there is none such.
    """
    clean = [a.clean is not False and b.clean is not False for a, b in pairs]
    kept = clean if any(clean) else [True] * len(pairs)
    found = [a.seconds / b.seconds for (a, b), use in zip(pairs, kept, strict=True) if use]
    return {
        "ratio": statistics.median(found),
        "low": min(found),
        "high": max(found),
        "rounds": len(found),
    }


def matrix_product() -> Case:
    """The ceiling: `PRODUCTS` products of random float32 matrices."""
    a, b, out = (torch.randn(SIZE, SIZE) for _ in range(3))

    def work() -> None:
        for _ in range(PRODUCTS):
            torch.mm(a, b, out=out)

    work()
    return work


def gflops(samples: Sequence[Sample]) -> dict[str, float]:
    """Of `matrix_product`: median and best."""
    found, work = seconds(samples), PRODUCTS * 2 * SIZE**3 / 1e9
    return {"median": work / found["seconds"], "best": work / found["fastest"]}
