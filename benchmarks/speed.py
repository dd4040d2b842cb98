"""Training speed on a CPU: ours against other people's models of equal shape, and every scheme against none.

python -m benchmarks.speed nanogpt=/path/to/nanoGPT
python -m benchmarks.speed nanogpt=/path/to/nanoGPT compile=true parts=peers

All cases of a table live in one process and take turns, the machine's own ceiling (a float32 matrix product)
among them; benchmarks/timing.py says how. All have random tokens, the same fused AdamW, clipping and order of
work (benchmarks/subjects.py), and are fed as their own documentation says (benchmarks/peers.py). A peer's row
has `ours`: the time of our model with the same kind of positions, by its time, so that below 1 we are faster.
With compile=true every model is there twice, as it is and compiled; `start_seconds` are the first two steps', and
nothing comes from a cache of compilations.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.options import begin, command, machine, recorded, save
from configs.check import LONGEST, nearest, within
from errors import UserError


@dataclass
class Settings:
    out: str = "docs/results"  # folder; a file for each part
    parts: list[str] = field(default_factory=lambda: ["peers", "schemes"])  # tables
    sizes: list[str] = field(default_factory=lambda: ["3M", "10M"])  # against peers
    lengths: list[int] = field(default_factory=lambda: [256, 512])  # against peers
    schemes: list[str] = field(default_factory=list)  # none given: all of them
    scheme_size: str = "3M"  # against none
    scheme_lengths: list[int] = field(default_factory=lambda: [512, 2048])  # against none
    tokens: int = 4096  # a step
    rounds: int = 7  # turns of each case
    compile: bool = False  # true: each also compiled
    threads: int = 0  # 0: torch's choice
    patience: float = 60.0  # seconds to wait for a quiet machine before a sample
    nanogpt: str | None = None  # folder of a checkout
    litgpt: str | None = None  # the same
    lingua: str | None = None  # the same


def measure(settings: Settings) -> None:
    import torch
    from torch._inductor import config as inductor

    lengths = {"peers": settings.lengths, "schemes": settings.scheme_lengths}
    sizes = {"peers": settings.sizes, "schemes": [settings.scheme_size]}
    for part in settings.parts:
        if part not in PARTS:
            raise UserError(f"parts={part} is unknown{nearest(part, PARTS)}")
        begin(settings, [file(settings, part)], sizes[part])
        within("tokens", settings.tokens, max(lengths[part], default=1), LONGEST)
    within("rounds", settings.rounds, 1, LONGEST)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    # Every case is a compilation of its own: past the limit torch would quietly run one as it is. And a first
    # compilation is what a user waits for.
    limit = torch._dynamo.config.patch(recompile_limit=10_000)
    with limit, inductor.patch(force_disable_caches=True):
        for part in settings.parts:
            absent: dict[str, str] = {}
            report = {"machine": machine(), "settings": recorded(settings), "absent": absent}
            report["tables"] = []
            for table in PARTS[part](settings, absent):
                report["tables"].append(table)
                save(file(settings, part), report)


def file(settings: Settings, part: str) -> str:
    return f"{settings.out}/speed-{part}{'-compiled' * settings.compile}.json"


def peers(settings: Settings, absent: dict[str, str]) -> Iterator[dict[str, Any]]:
    for size in settings.sizes:
        for length in settings.lengths:
            yield peers_table(size, length, settings, absent)


def schemes(settings: Settings, absent: dict[str, str]) -> Iterator[dict[str, Any]]:
    from benchmarks.subjects import SCHEMES

    for length in settings.scheme_lengths:
        yield schemes_table(settings.schemes or SCHEMES, length, settings)


PARTS = {"peers": peers, "schemes": schemes}


def peers_table(
    size: str, length: int, settings: Settings, absent: dict[str, str]
) -> dict[str, Any]:
    from benchmarks.peers import PEERS, Absent
    from benchmarks.subjects import mean_nats, ours, shape
    from benchmarks.timing import ratio

    at, built, groups = shape(size, length), {}, {}
    for name, peer in PEERS.items():
        try:
            path = getattr(settings, peer.path) if peer.path else None
            built[name] = peer.build(at, path)
        except Absent as reason:
            absent[name] = str(reason)
            continue
        groups.setdefault(peer.like, []).append(name)
    for name in groups:
        built[name] = ours(at, name), mean_nats
    turned = lambda pairs: ratio([(our, their) for their, our in pairs])  # noqa: E731
    found = run(built, groups, at, settings, "ours", turned)
    return {"size": size} | found


def schemes_table(names: list[str], length: int, settings: Settings) -> dict[str, Any]:
    from benchmarks.subjects import mean_nats, ours, shape
    from benchmarks.timing import ratio

    at = shape(settings.scheme_size, length)
    others = [name for name in names if name != "none"]
    built = {name: (ours(at, name), mean_nats) for name in ("none", *others)}
    found = run(built, {"none": others}, at, settings, "of_none", ratio)
    return {"size": settings.scheme_size} | found


def run(
    built: dict[str, tuple[Any, Any]],
    groups: dict[str, list[str]],
    at: Any,
    settings: Settings,
    key: str,
    compare: Callable[[Any], dict[str, float]],
) -> dict[str, Any]:
    """Turns of all cases; each but the yardsticks gets `key`: its samples compared with those of its yardstick.

    A compiled yardstick gets `of_plain`: compared with itself as it is.
    """
    import torch

    from benchmarks.timing import CEILING, gflops, matrix_product, ratio, seconds, take_turns

    modes = (False, True) if settings.compile else (False,)
    tokens = torch.randint(at.vocab_size, (settings.tokens // at.context, at.context + 1))
    cases: dict[str, Any] = {CEILING: matrix_product()}
    rows: dict[str, dict[str, Any]] = {}
    for compiled in modes:
        for name, (model, loss) in built.items():
            row, step = warm(name, model, loss, compiled, at, tokens)
            rows[label(name, compiled)], cases[label(name, compiled)] = row, step
    turns: dict[str, list[str]] = {CEILING: []}
    for yardstick, names in groups.items():
        turns[yardstick] = [*names, *(label(yardstick, c) for c in modes if c)]
        turns |= {label(yardstick, c): [label(name, c) for name in names] for c in modes if c}
    samples, pairs = take_turns(cases, turns, settings.rounds, settings.patience)
    ceiling = gflops(samples[CEILING])
    yardsticks = {name: yardstick for yardstick, names in groups.items() for name in names}
    for case, row in rows.items():
        row |= seconds(samples[case])
        rate = row["flops"] / row["seconds"] / 1e9
        row |= {"tokens_per_second": tokens.shape[0] * at.context / row["seconds"]}
        row |= {"gflops": rate, "utilisation": rate / ceiling["median"]}
        if row["case"] in yardsticks:
            row[key] = {"case": yardsticks[row["case"]]} | compare(pairs[case])
        elif row["compiled"]:
            row["of_plain"] = ratio(pairs[case])
    found = {"length": at.context, "batch": tokens.shape[0], "ceiling_gflops": ceiling}
    return found | {"rows": list(rows.values())}


def warm(
    name: str, model: Any, loss: Any, compiled: bool, at: Any, tokens: Any
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """A case's row so far, and its step, after two of them."""
    from benchmarks.subjects import Trainee
    from training.cost import flops_per_token

    print(f"  {at.context} tokens: warming {label(name, compiled)}", flush=True)
    trainee = Trainee(model, loss, compiled=compiled)
    began = time.perf_counter()
    for _ in range(2):
        first = trainee.step(tokens)
    row = {
        "case": name,
        "compiled": compiled,
        "parameters": sum(p.numel() for p in model.parameters()),
        "flops": flops_per_token(model, at.config) * tokens.shape[0] * at.context,
        "start_seconds": time.perf_counter() - began,
        "loss": first.item(),
    }
    return row, lambda: trainee.step(tokens)


def label(name: str, compiled: bool) -> str:
    return f"{name}, compiled" if compiled else name


if __name__ == "__main__":
    command(Settings, measure, __doc__)
