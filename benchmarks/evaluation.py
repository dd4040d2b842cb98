"""What evaluation costs by scheme and length: time in turns in one process, memory in a process of its own.

python -m benchmarks.evaluation                            # schemes=none,rope,alibi takes less time

A 3M model reads one text of 512 to 16,384 tokens and scores all of them (`all`), or the last 32, as the
protocol same_tokens does (`last`). Memory is the peak of the resident set (VmHWM, reset before the reading)
above what the process held before; it is good to some tens of MiB. Ratios are against no positions (`none`),
and growth is that from the second longest length to the longest: 2 where they double and cost is linear.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.options import begin, command, machine, recorded, save
from configs.check import LONGEST, within
from errors import UserError
from revision import ROOT

LAST = 32  # tokens of same_tokens' blocks


FORMS = ["none", "rope", "learned", "alibi", "fox", "kerple_log", "t5", "fire", "hybrid"]


@dataclass
class Settings:
    out: str = "docs/results/evaluation-speed.json"
    size: str = "3M"  # or 10M, tiny
    schemes: list[str] = field(default_factory=FORMS.copy)  # one or two of each form
    lengths: list[int] = field(default_factory=lambda: [512, 2048, 4096, 8192, 16384])
    kinds: list[str] = field(default_factory=lambda: ["all", "last"])  # what is scored
    rounds: int = 5
    threads: int = 0  # 0: torch's choice
    patience: float = 60.0  # seconds to wait for a quiet machine before a sample


def measure(settings: Settings) -> dict[str, Any]:
    import torch

    if settings.threads:
        torch.set_num_threads(settings.threads)
    begin(settings, [settings.out], [settings.size])
    within("rounds", settings.rounds, 1, LONGEST)
    for length in settings.lengths:
        within("lengths", length, LAST, LONGEST)
    names = ["none", *(name for name in settings.schemes if name != "none")]
    report: dict[str, Any] = {"machine": machine(), "settings": recorded(settings), "rows": []}
    for length in settings.lengths:
        for kind in settings.kinds:
            report["rows"] += table(names, length, kind, settings)
            save(settings.out, report)
    report["growth"] = growth(report["rows"], settings.lengths)
    save(settings.out, report)
    return report


def reading(size: str, name: str, length: int, kind: str) -> Any:
    """A case: the model reads the text and scores it."""
    import torch

    from benchmarks.subjects import ours, shape

    model = ours(shape(size, length), name).eval()
    text = torch.randint(model.config.vocab_size, (1, length + 1))
    targets = text[:, 1:] if kind == "all" else text[:, -LAST:]

    @torch.inference_mode()
    def read() -> None:
        model(text[:, :-1], targets)

    return read


def table(names: list[str], length: int, kind: str, settings: Settings) -> list[dict[str, Any]]:
    from benchmarks.timing import ratio, seconds, take_turns

    print(f"{length} tokens, {kind} scored", flush=True)
    cases = {name: reading(settings.size, name, length, kind) for name in names}
    for read in cases.values():
        read()
    groups = {"none": [name for name in names if name != "none"]}
    samples, pairs = take_turns(cases, groups, settings.rounds, settings.patience)
    memory = {name: in_subprocess(name, length, kind, settings) for name in names}
    rows = []
    for name in names:
        row = {"scheme": name, "length": length, "scored": kind} | seconds(samples[name])
        row["of_none"] = ratio(pairs.get(name, [(none, none) for none in samples["none"]]))
        row["memory_mib"] = memory[name]
        rows.append(row)
    return rows


def in_subprocess(name: str, length: int, kind: str, settings: Settings) -> float | None:
    call = f"peak({settings.size!r}, {name!r}, {length}, {kind!r})"
    code = f"import json\nfrom benchmarks.evaluation import peak\nprint(json.dumps({call}))"
    threads = {"OMP_NUM_THREADS": str(settings.threads)} if settings.threads else {}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=os.environ | threads, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise UserError(f"{name} at {length} tokens: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def peak(size: str, name: str, length: int, kind: str) -> float | None:
    """MiB of the resident set above what it was before the reading; None where it cannot be asked."""
    read = reading(size, name, length, kind)
    reading(size, name, 64, kind)()  # the libraries' own memory
    try:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM from here on
        before = status("VmRSS")
    except OSError:
        return None
    read()
    return (status("VmHWM") - before) / 1024


def status(key: str) -> int:
    """KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def growth(rows: list[dict[str, Any]], lengths: list[int]) -> list[dict[str, Any]]:
    """Time and memory at the longest length by those at the one before it."""
    found = []
    for name, kind in dict.fromkeys((row["scheme"], row["scored"]) for row in rows):
        at = {r["length"]: r for r in rows if (r["scheme"], r["scored"]) == (name, kind)}
        if len(lengths) < 2:
            continue
        short, long = (at[length] for length in sorted(lengths)[-2:])
        entry = {"scheme": name, "scored": kind, "from": short["length"], "to": long["length"]}
        entry["seconds"] = long["seconds"] / short["seconds"]
        known = short["memory_mib"] and long["memory_mib"]
        entry["memory"] = long["memory_mib"] / short["memory_mib"] if known else None
        found.append(entry)
    return found


if __name__ == "__main__":
    command(Settings, measure, __doc__)
