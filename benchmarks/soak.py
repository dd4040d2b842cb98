"""Can training be killed at any moment? One run undisturbed, then one killed with SIGKILL again and again.

python -m benchmarks.soak            # a few minutes on one core; writes docs/results/soak.json

A tiny model is trained with a checkpoint every 10 steps and validation every 5, on text that has to be prepared
first. Then the same command is killed (benchmarks/kills.py) and started again with resume=auto or resume=<folder>, and
sometimes its data cache is thrown away in between. What the two runs end with must be the same bits: weights,
optimizer, best checkpoint, and every number and batch hash of the metrics, where of each step the newest attempt
counts. What is unusual: kills are aimed (at the start, at preparing data, at saving, at training and validation),
and counted by what the stack of the process said at that moment.
"""

import argparse
import importlib
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kills import kill, running, start

COMMAND = [
    "experiment=smoke", "tracker=none", "device=cpu", "position=rope", "tokenizer.vocab_size=300",
    "data=files", "data.train=[train.jsonl]", "data.validation=[held.txt]", "data.test=[]",
    "data.cache_dir=cache", "train.save_every=10", "train.eval_every=5", "train.log_every=1",
    "train.eval_tokens=2048",
]  # fmt: skip
TIMES = (
    "seconds",
    "attempt",
    "train/tokens_per_second",
    "train/mfu",
)  # of a record: these may differ


@dataclass
class Seen:
    """What happened, counted as it was seen."""

    kills: Counter = field(default_factory=Counter)  # by phase
    begun: Counter = field(default_factory=Counter)  # attempts, by how they were started
    left: Counter = field(default_factory=Counter)  # kills that left such a thing on the disk
    caches: int = 0  # times that the data cache was thrown away


def write_text(folder: Path) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 7))) for _ in range(200)]
    documents = [" ".join(rng.choices(words, k=150)) for _ in range(300)]
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    (folder / "held.txt").write_text(" ".join(rng.choices(words, k=2000)))


def run_of(folder: Path) -> Path | None:
    """The run that has a checkpoint to go on from."""
    found = sorted(folder.glob("outputs/*/*/checkpoints/last"), key=lambda p: p.stat().st_mtime)
    return found[-1].parents[1] if found else None


def reached(folder: Path) -> int:
    run = run_of(folder)
    return int((run / "checkpoints/last").read_text().split("-")[1]) if run else 0


def lines(folder: Path) -> int:
    return sum(p.read_bytes().count(b"\n") for p in folder.glob("outputs/*/*/metrics.jsonl"))


def begun(folder: Path, pattern: str) -> set[tuple[Path, int]]:
    """What matches, and when it was made: what an earlier kill left does not count again."""
    found = set()
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):  # finished meanwhile
            found.add((path, path.stat().st_ctime_ns))
    return found


DRAFT, PARTIAL = "outputs/*/*/checkpoints/.draft*", "cache/*.partial"


def wait(child: int, folder: Path, aim: str, rng: random.Random) -> None:
    """Until the moment to kill: some time after the start, or a little after something is seen."""
    start, before = time.monotonic(), lines(folder)
    old = {pattern: begun(folder, pattern) for pattern in (DRAFT, PARTIAL)}
    some, more, later = rng.uniform(0, 2), rng.randint(1, 9), rng.uniform(0, 0.1)
    happened = {
        "start": lambda: time.monotonic() > start + some,
        "data": lambda: begun(folder, PARTIAL) - old[PARTIAL],
        "save": lambda: begun(folder, DRAFT) - old[DRAFT],
        "train": lambda: lines(folder) >= before + more,
    }[aim]
    while time.monotonic() < start + 120 and not happened() and running(child):
        time.sleep(0.001)
    time.sleep(later / 10 if aim == "save" else later)


def attempt(folder: Path, steps: int, seen: Seen, rng: random.Random, aim: str) -> bool:
    """Start, and kill at a moment that `aim` says; whether it was killed before its end."""
    run = run_of(folder)
    how = rng.choice(["resume=auto", "resume=<folder>"]) if run else "from the start"
    begin = [*COMMAND, f"train.steps={steps}"]
    arguments = {
        "resume=auto": [*begin, "resume=auto"],
        "resume=<folder>": [f"resume={run and run.relative_to(folder)}"],
        "from the start": begin,
    }[how]
    if aim == "data":
        shutil.rmtree(folder / "cache", ignore_errors=True)
        seen.caches += 1
    old = {pattern: begun(folder, pattern) for pattern in (DRAFT, PARTIAL)}
    child = start(folder, arguments)
    seen.begun[how] += 1
    wait(child, folder, aim, rng)
    phase = kill(child, folder)
    if phase is None:
        return False
    seen.kills[phase] += 1
    seen.left["an unfinished checkpoint"] += bool(begun(folder, DRAFT) - old[DRAFT])
    seen.left["an unfinished cache"] += bool(begun(folder, PARTIAL) - old[PARTIAL])
    torn = [p for p in folder.glob("outputs/*/*/metrics.jsonl") if p.read_bytes()[-1:] not in b"\n"]
    seen.left["half a line of metrics"] += bool(torn)
    return True


def disturbed(folder: Path, kills: int, steps: int, seed: int) -> Seen:
    rng, seen = random.Random(seed), Seen()
    aims = (["start", "data", "save", "train", "save", "train"] * kills)[:kills]
    rng.shuffle(aims)
    while sum(seen.kills.values()) < kills:
        aim = aims[sum(seen.kills.values())]
        if reached(folder) > steps - 20:  # else it would end before its time
            aim = rng.choice(["start", "data"])
        if not attempt(folder, steps, seen, rng, aim):
            break
    run = run_of(folder)
    finish = [f"resume={run.relative_to(folder)}"] if run else [*COMMAND, f"train.steps={steps}"]
    if not (run and reached(folder) == steps):
        seen.begun["to the end"] += 1
        finished(folder, finish)
    return seen


def finished(folder: Path, arguments: list[str]) -> None:
    _, status = os.waitpid(start(folder, arguments), 0)
    if status:
        sys.exit((folder / "log.txt").read_text()[-3000:])


def result(folder: Path) -> dict[str, Any]:
    """All that must be the same: weights, optimizer and counters, best checkpoint, metrics by step."""
    import torch

    from storage import digest
    from training.metrics import read_metrics

    run = run_of(folder)
    assert run is not None
    last, best = (
        run / "checkpoints" / (run / "checkpoints" / p).read_text() for p in ("last", "best")
    )
    state = torch.load(last / "state.pt", weights_only=True)
    with warnings.catch_warnings(
        action="ignore"
    ):  # half a line is left out, and its step done again
        records = read_metrics(run / "metrics.jsonl")
    return {
        "step": state["step"],
        "weights": digest(last / "model.safetensors"),
        "optimizer": plain({k: v for k, v in state.items() if k not in (*TIMES, "tracker_id")}),
        "best": [best.name, digest(best / "model.safetensors")],
        "losses": [{k: v for k, v in r.items() if k not in TIMES} for r in records],
    }


def plain(x: Any) -> Any:
    """Tensors as their bytes, so that == says equal bit for bit."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    return (str(x.dtype), x.numpy().tobytes()) if hasattr(x, "numpy") else x


def soak(kills: int, steps: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        calm, wild = Path(place, "calm"), Path(place, "wild")
        for folder in (calm, wild):
            folder.mkdir()
            write_text(folder)
        finished(calm, [*COMMAND, f"train.steps={steps}"])
        began = time.monotonic()
        seen = disturbed(wild, kills, steps, seed)
        one, two = result(calm), result(wild)
        equal = {key: one[key] == two[key] for key in one}
    return {
        "kills": sum(seen.kills.values()),
        "kills_by_phase": dict(seen.kills.most_common()),
        "left_behind_by": dict(seen.left),
        "attempts": sum(seen.begun.values()),
        "attempts_by_start": dict(seen.begun.most_common()),
        "data_cache_thrown_away": seen.caches,
        "steps": steps,
        "seconds": round(time.monotonic() - began),
        "identical": equal,
        "bit_identical": all(equal.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="docs/results/soak.json")
    arguments = parser.parse_args()
    import torch

    for module in ("train", "datasets", "tokenizers", "data.corpora", "data.loader", "data.prepare",
                   "training.run", "training.validation"):  # fmt: skip
        importlib.import_module(module)  # once for all attempts

    torch.set_num_threads(1)
    found = soak(arguments.kills, arguments.steps, arguments.seed)
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.platform(),
    }
    report = {**found, "seed": arguments.seed, **versions}
    print(json.dumps(report, indent=1))
    Path(arguments.out).write_text(json.dumps(report, indent=1) + "\n")
    if not found["bit_identical"] or found["kills"] < arguments.kills:
        sys.exit("soak: not what it should be")


if __name__ == "__main__":
    main()
