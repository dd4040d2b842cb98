"""Training speed on a CPU: ours against other people's models of equal shape, and every scheme against none.

python -m benchmarks.speed nanogpt=/path/to/nanoGPT
python -m benchmarks.speed nanogpt=/path/to/nanoGPT compile=true part=peers out=docs/results/speed-compiled.json

All cases of a table live in one process and take turns, the machine's own ceiling (a float32 matrix product)
among them; benchmarks/timing.py says how. All have random tokens, the same fused AdamW, clipping and order of
work (benchmarks/subjects.py), and are fed as their own documentation says (benchmarks/peers.py). A peer's row
has `ours`: the time of our model with the same kind of positions, by its time, so that below 1 we are faster.
With compile=true every model is there twice, as it is and compiled.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.options import command, machine, save


@dataclass
class Settings:
    out: str = "docs/results/speed.json"
    part: str = "all"  # peers, schemes or all
    sizes: list[str] = field(default_factory=lambda: ["3M", "10M"])
    lengths: list[int] = field(default_factory=lambda: [256, 512])  # against peers
    schemes: list[str] = field(default_factory=list)  # none given: all of them
    scheme_size: str = "3M"
    scheme_lengths: list[int] = field(default_factory=lambda: [512, 2048])
    tokens: int = 4096  # a step
    rounds: int = 7
    compile: bool = False
    threads: int = 0  # 0: torch's choice
    patience: float = 60.0  # seconds to wait for a quiet machine before a sample
    nanogpt: str | None = None  # folders of checkouts
    litgpt: str | None = None
    lingua: str | None = None


def measure(settings: Settings) -> dict[str, Any]:
    import torch

    if settings.threads:
        torch.set_num_threads(settings.threads)
    # Every case is a compilation of its own: past the limit torch would quietly run one as it is.
    torch._dynamo.config.recompile_limit = 10_000
    report: dict[str, Any] = {
        "machine": machine(),
        "settings": asdict(settings) | {key: None for key in ("nanogpt", "litgpt", "lingua")},
        "tables": [],
        "absent": {},
    }
    for table in tables(settings, report["absent"]):
        report["tables"].append(table)
        save(settings.out, report)
    return report


def tables(settings: Settings, absent: dict[str, str]) -> Iterator[dict[str, Any]]:
    from benchmarks.subjects import SCHEMES

    if settings.part in ("all", "peers"):
        for size in settings.sizes:
            for length in settings.lengths:
                yield peers_table(size, length, settings, absent)
    if settings.part in ("all", "schemes"):
        for length in settings.scheme_lengths:
            yield schemes_table(settings.schemes or SCHEMES, length, settings)


def peers_table(
    size: str, length: int, settings: Settings, absent: dict[str, str]
) -> dict[str, Any]:
    from benchmarks.peers import PEERS, Absent
    from benchmarks.subjects import mean_nats, ours, shape

    at, built, like = shape(size, length), {}, {}
    for name, peer in PEERS.items():
        try:
            path = getattr(settings, peer.path) if peer.path else None
            built[name], like[name] = peer.build(at, path), peer.like
        except Absent as reason:
            absent[name] = str(reason)
    for name in dict.fromkeys(like.values()):
        built[name] = ours(at, name), mean_nats
    found = run(built, at, settings)
    for row in found["rows"]:
        if row["case"] in like:
            row["ours"] = against(found, like[row["case"]], row)
    return {"part": "peers", "size": size} | strip(found)


def schemes_table(names: list[str], length: int, settings: Settings) -> dict[str, Any]:
    from benchmarks.subjects import mean_nats, ours, shape

    at = shape(settings.scheme_size, length)
    names = ["none", *(name for name in names if name != "none")]
    found = run({name: (ours(at, name), mean_nats) for name in names}, at, settings)
    none = {"case": "none"}
    for row in found["rows"]:
        row["of_none"] = against(found, row["case"], none | {"compiled": row["compiled"]})
    return {"part": "schemes", "size": settings.scheme_size} | strip(found)


def run(built: dict[str, tuple[Any, Any]], at: Any, settings: Settings) -> dict[str, Any]:
    """Turns of all cases; their samples under "samples", for ratios."""
    import torch

    from benchmarks.subjects import Trainee, flops_per_token
    from benchmarks.timing import CEILING, gflops, matrix_product, seconds, take_turns

    tokens = torch.randint(at.vocab_size, (max(1, settings.tokens // at.context), at.context + 1))
    cases: dict[str, Any] = {CEILING: matrix_product()}
    rows: dict[str, dict[str, Any]] = {}
    for compiled in (False, True) if settings.compile else (False,):
        for name, (model, loss) in built.items():
            trainee = Trainee(model, loss, compiled=compiled)
            key = label(name, compiled)
            print(f"  {at.context} tokens: warming {key}", flush=True)
            for _ in range(2):
                first = trainee.step(tokens)
            rows[key] = {
                "case": name,
                "compiled": compiled,
                "parameters": sum(p.numel() for p in model.parameters()),
                "flops": flops_per_token(model, at) * tokens.shape[0] * at.context,
                "loss": first.item(),
            }
            cases[key] = lambda trainee=trainee: trainee.step(tokens)
    samples = take_turns(cases, settings.rounds, settings.patience)
    ceiling = gflops(samples[CEILING])
    for key, row in rows.items():
        row |= seconds(samples[key])
        rate = row.pop("flops") / row["seconds"] / 1e9
        row |= {"tokens_per_second": tokens.shape[0] * at.context / row["seconds"]}
        row |= {"gflops": rate, "utilisation": rate / ceiling["median"]}
    found = {"length": at.context, "batch": tokens.shape[0], "ceiling_gflops": ceiling}
    return found | {"rows": list(rows.values()), "samples": samples}


def label(name: str, compiled: bool) -> str:
    return f"{name}, compiled" if compiled else name


def against(found: dict[str, Any], name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Time of `name` by time of the row's case, both compiled or both not."""
    from benchmarks.timing import ratio

    keys = (label(case, row["compiled"]) for case in (name, row["case"]))
    a, b = (found["samples"][key] for key in keys)
    return {"case": name} | ratio(a, b)


def strip(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "samples"}


if __name__ == "__main__":
    command(Settings, measure, __doc__)
