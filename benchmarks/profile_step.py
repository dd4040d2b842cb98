"""Where the time of a training step goes: operators by their own time, for some schemes.

python -m benchmarks.profile_step                # schemes=none,alibi length=512 takes less time

Read as shares, not as speed: nobody takes turns here. `step_seconds` are the medians of steps just before, without
the profiler, which slows them down.
"""

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.options import begin, command, machine, recorded, save
from configs.check import LONGEST, within

SCHEMES = ["none", "alibi", "fox", "kerple_log", "fire"]


@dataclass
class Settings:
    out: str = "docs/results/profile.json"
    size: str = "3M"  # or 10M, tiny
    schemes: list[str] = field(default_factory=SCHEMES.copy)
    length: int = 2048  # tokens a text
    tokens: int = 4096  # a step
    steps: int = 5  # under the profiler, and as many without it
    threads: int = 0  # 0: torch's choice


def measure(settings: Settings) -> dict[str, Any]:
    import torch

    begin(settings, [settings.out], [settings.size])
    within("steps", settings.steps, 1, LONGEST)
    within("tokens", settings.tokens, settings.length, LONGEST)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    report: dict[str, Any] = {"machine": machine(), "settings": recorded(settings), "schemes": []}
    for name in settings.schemes:
        print(name, flush=True)
        report["schemes"].append({"scheme": name} | profiled(name, settings))
        save(settings.out, report)
    return report


def profiled(name: str, settings: Settings) -> dict[str, Any]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.subjects import Trainee, mean_nats, ours, shape

    at = shape(settings.size, settings.length)
    trainee = Trainee(ours(at, name), mean_nats)
    batch = settings.tokens // settings.length
    tokens = torch.randint(at.vocab_size, (batch, settings.length + 1))
    trainee.step(tokens)
    plain = []
    for _ in range(settings.steps):
        began = time.perf_counter()
        trainee.step(tokens)
        plain.append(time.perf_counter() - began)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(settings.steps):
            trainee.step(tokens)
    own = {e.key: e.self_cpu_time_total / settings.steps / 1e6 for e in seen.key_averages()}
    return {"step_seconds": statistics.median(plain), "operators": own}


if __name__ == "__main__":
    command(Settings, measure, __doc__)
