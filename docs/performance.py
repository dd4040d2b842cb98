"""The tables of docs/performance.md, from what the benchmarks wrote into docs/results: `python -m docs.readme`.

A section whose result is not there says so, with the command that would make it.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.options import written

RESULTS = Path(__file__).parent / "results"
Section = Callable[[], str]


def missing(command: str) -> str:
    return f"Not measured yet: `python -m benchmarks.{command}`.\n"


def load(name: str) -> Any:
    """The report, None if there is none."""
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, numbers to the right: the first column holds names."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def machine(report: Mapping[str, Any], command: str) -> str:
    """Where a report comes from, and the command that makes another."""
    found, commit = report["machine"], str(report["machine"]["commit"])
    return (
        f"{found['processor']}, {found['threads']} threads, torch {found['torch']}, "
        f"commit {commit[:10]}{'+' * ('+' in commit)}: `{again(report, command)}`."
    )


def again(report: Mapping[str, Any], command: str) -> str:
    """`command` with the settings that the report was made with."""
    module, *words = command.split()
    defaults = asdict(import_module(f"benchmarks.{module}").Settings())
    said = {word.partition("=")[0] for word in words}
    words += [
        f"{key}={written(value)}"
        for key, value in report["settings"].items()
        if key in defaults.keys() - said and value != defaults[key]
    ]
    return f"python -m benchmarks.{' '.join([module, *words])}"


def spread(found: Mapping[str, float] | None) -> str:
    """A ratio with the lowest and the highest of so many rounds."""
    if found is None:
        return ""
    return f"{found['ratio']:.2f} ({found['low']:.2f}–{found['high']:.2f}; {found['rounds']:.0f})"


def clean(row: Mapping[str, Any]) -> str:
    return f"{'?' if row['clean'] is None else row['clean']}/{row['rounds']}"


def peers(name: str, command: str) -> str:
    report = load(name)
    if not report:
        return missing(command)
    absent = "".join(f" {who}: {why}." for who, why in report["absent"].items())
    return f"{machine(report, command)}{absent}\n\n" + "\n".join(map(peers_table, report["tables"]))


def peers_table(found: Mapping[str, Any]) -> str:
    best, median = found["ceiling_gflops"]["best"], found["ceiling_gflops"]["median"]
    title = (
        f"{found['size']}, {found['length']} tokens, batches of {found['batch']}; matrix product of 2,048 in the "
        f"same rounds: {median:.0f} GFLOP/s (best {best:.0f})."
    )
    theirs = {row["case"] for row in found["rows"] if "ours" in row}
    eager = {row["case"]: row for row in found["rows"] if not row["compiled"]}
    compiled, rows = any(row["compiled"] for row in found["rows"]), []
    for row in sorted(found["rows"], key=lambda r: r["seconds"]):
        who = row["case"] if row["case"] in theirs else f"**ours, {row['case']}**"
        rows.append([
            who + ", compiled" * row["compiled"],
            f"{row['seconds']:.3f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['utilisation']:.2f}",
            f"{spread(row['ours'])} {row['ours']['case']}" if "ours" in row else "",
            clean(row),
            *(pays(row, eager[row["case"]]) if compiled else []),
        ])  # fmt: skip
    head = ["model", "s a step", "tokens/s", "of the ceiling", "our time / its", "clean"]
    head += ["compiled / not", "compiling takes, pays"] if compiled else []
    return f"{title}\n\n{table(head, rows)}"


def pays(row: Mapping[str, Any], eager: Mapping[str, Any]) -> list[str]:
    """A compiled yardstick's time by its own uncompiled; what compiling took, and after how many FLOPs it has paid."""
    if "of_plain" not in row:
        return ["", ""]
    took = row["start_seconds"] - eager["start_seconds"]
    won = 1 - row["of_plain"]["ratio"]  # of a step
    if won <= 0:
        return [spread(row["of_plain"]), f"{took:.0f} s, never"]
    flops = took / (won * eager["seconds"]) * row["flops"]
    return [spread(row["of_plain"]), f"{took:.0f} s, from {flops:.0e} FLOPs on"]


def schemes() -> str:
    report, command = load("speed-schemes.json"), "speed parts=schemes"
    if not report:
        return missing(command)
    found = report["tables"]
    at = [{r["case"]: r for r in t["rows"] if not r["compiled"]} for t in found]
    rows = [[n, *(spread(t[n].get("of_none")) for t in at)] for n in at[0] if n != "none"]
    head = ["scheme", *(f"time / none, {t['length']:,} tokens" for t in found)]
    ceilings = ", ".join(f"{t['ceiling_gflops']['median']:.0f}" for t in found)
    return f"{machine(report, command)} Ceiling: {ceilings} GFLOP/s.\n\n{table(head, rows)}"


def profile() -> str:
    report, command = load("profile.json"), "profile_step"
    if not report:
        return missing(command)
    at = {found["scheme"]: found for found in report["schemes"]}
    own = [found["operators"] for found in at.values()]
    most = dict.fromkeys(o for times in own for o in sorted(times, key=lambda o: -times[o])[:8])
    rows = [[f"`{o}`", *(number(times.get(o), ".2f", "") for times in own)] for o in most]
    rows.append(["all operators", *(f"{sum(times.values()):.2f}" for times in own)])
    rows.append(["a step without the profiler", *(f"{f['step_seconds']:.2f}" for f in at.values())])
    length = report["settings"]["length"]
    head = [f"own seconds in a step of {length:,} tokens a text", *at]
    return f"{machine(report, command)}\n\n{table(head, rows)}"


def evaluation() -> str:
    report, command = load("evaluation-speed.json"), "evaluation"
    if not report:
        return missing(command)
    parts = [machine(report, command) + "\n"]
    for kind, title in (("all", "All tokens scored"), ("last", "The last 32 scored")):
        lengths = sorted({row["length"] for row in report["rows"]})
        names = list(dict.fromkeys(row["scheme"] for row in report["rows"]))
        at = {(r["scheme"], r["length"]): r for r in report["rows"] if r["scored"] == kind}
        if not at:
            continue
        rows = [[name, *(cost(at.get((name, n))) for n in lengths)] for name in names]
        parts.append(f"{title}:\n\n{table(['scheme', *(f'{n:,}' for n in lengths)], rows)}")
    if report.get("growth"):
        rows = [
            [f"{g['scheme']}, {g['scored']}", f"{g['seconds']:.2f}", number(g["memory"], ".1f")]
            for g in report["growth"]
        ]
        ends = f"{report['growth'][0]['from']:,} to {report['growth'][0]['to']:,} tokens"
        parts.append(
            f"From {ends}, times as much:\n\n{table(['scheme, scored', 'time', 'memory'], rows)}"
        )
    return "\n".join(parts)


def cost(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    known = row["memory_mib"]
    memory = "?" if known is None else f"{round(known, -1):.0f}"
    of = spread(row["of_none"]) if row["scheme"] != "none" else clean(row)
    return f"{row['seconds']:.3g} s, {of}, {memory} MiB"


def number(value: float | None, form: str, unknown: str = "?") -> str:
    return unknown if value is None else format(value, form)


def quality() -> str:
    report, command = load("quality.json"), "quality_per_minute nanogpt=/path/to/nanoGPT"
    if not report:
        return missing(command)
    rows = []
    for name in report["seeds"][0]["curves"]:
        ends = [seed["curves"][name][-1] for seed in report["seeds"]]
        losses, times = [end["loss"] for end in ends], [end["seconds"] for end in ends]
        of = [
            end["loss"] - seed["curves"]["nanoGPT"][-1]["loss"]
            for end, seed in zip(ends, report["seeds"], strict=True)
        ]
        rows.append([
            name if name == "nanoGPT" else f"**ours, {name}**",
            f"{statistics.mean(end['tokens'] for end in ends):,.0f}",
            f"{statistics.mean(times):.0f}{span(times, '.0f')}",
            f"{statistics.mean(losses):.3f}{span(losses, '.3f')}",
            "" if name == "nanoGPT" else f"{statistics.mean(of):+.3f}{span(of, '.3f')}",
        ])  # fmt: skip
    head = ["model", "tokens", "s of training", "validation loss, nats a byte", "minus nanoGPT's"]
    seeds = f"{len(report['seeds'])} seed{'s' * (len(report['seeds']) > 1)}"
    return f"{machine(report, command)} {seeds}, means (lowest to highest).\n\n{table(head, rows)}"


def span(values: Sequence[float], form: str) -> str:
    return f" ({min(values):{form}} to {max(values):{form}})" if len(values) > 1 else ""


def gpu() -> str:
    path = RESULTS / "gpu.jsonl"
    if not path.exists():
        return f"Nothing of this project has run on a GPU yet. {missing('gpu')}"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    first = rows[0]
    parts = [f"{first['gpu']}, CUDA {first['cuda']}, torch {first['torch']}.\n"]
    for part in dict.fromkeys(row["part"] for row in rows[1:] if row["part"] != "end"):
        parts.append(f"{part}:\n\n{loose_table([r for r in rows if r['part'] == part])}")
    return "\n".join(parts)


def loose_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whatever the rows have; long texts stay in the file."""
    left_out = {"part", "traceback", "said", "kernels"}
    keys = [k for k in dict.fromkeys(k for row in rows for k in row) if k not in left_out]
    cells = [[loose(row.get(key)) for key in keys] for row in rows]
    return table([key.replace("_", " ") for key in keys], cells)


def loose(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value).replace("|", "/").replace("\n", " ")[:80]


SECTIONS: Mapping[str, Section] = {
    "peers": lambda: peers("speed-peers.json", "speed nanogpt=/path/to/nanoGPT parts=peers"),
    "compiled": lambda: peers(
        "speed-peers-compiled.json", "speed nanogpt=/path/to/nanoGPT parts=peers compile=true"
    ),
    "schemes": schemes,
    "profile": profile,
    "evaluation": evaluation,
    "quality": quality,
    "gpu": gpu,
}
