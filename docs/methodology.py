"""The tables of docs/methodology.md, from what stands in docs/results: `python -m docs.readme`.

The pair of curves comes from the demo's report, the error rates from simulated and from real runs.
"""

import csv
import json
import math
from collections.abc import Mapping
from typing import Any, get_args

from docs.performance import RESULTS, Section, missing, table
from evaluation.figures import COLOURS, svg
from evaluation.formats import number
from evaluation.statistics import Claim

PICTURE = RESULTS / "early-tokens.svg"
SCHEME = "alibi"  # of the demo: the one that survives longer windows

Curve = dict[int, tuple[float, float, float, float]]  # length: perplexity; gain, from, to


def curve(protocol: str, scheme: str = SCHEME) -> Curve:
    """Of one scheme of the demo: perplexity, and loss at the trained length minus loss, with interval."""
    with (RESULTS / f"demo/{protocol}.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["scheme"] == scheme and not r["window"]]
    found = {}
    for row in [r for r in rows if r["ratio"]]:  # 1 without an interval at the trained length
        ratios = [float(row[key] or row["ratio"]) for key in ("ratio", "ratio_high", "ratio_low")]
        gains = [-math.log(ratio) + 0.0 for ratio in ratios]
        found[int(row["place"])] = (float(row["ppl"]), gains[0], gains[1], gains[2])
    return found


def early_tokens() -> str:
    """One model under two protocols, and the picture of it."""

    def cells(found: Curve, length: int) -> list[str]:
        if length not in found:
            return ["–", "–"]
        ppl, gain, low, high = found[length]
        return [number(ppl), f"{gain:+.4f} ({low:+.4f} to {high:+.4f})" if gain else "0"]

    same, cut = curve("same_tokens"), curve("non_overlapping")
    rows = [[f"{n:,}", *cells(cut, n), *cells(same, n)] for n in sorted(same.keys() | cut.keys())]
    head = ["context", "`non_overlapping`", "gain (95 %)", "`same_tokens`", "gain (95 %)"]
    alt = f"Gain over the trained length against context length, {SCHEME}, under both protocols"
    return f"![{alt}](results/{PICTURE.name})\n\n{table(head, rows)}"


def picture() -> str:
    def draw(axes: Any) -> None:
        axes.axhline(0, color="#555555", linewidth=1)
        for colour, protocol in zip(COLOURS, ("non_overlapping", "same_tokens"), strict=False):
            found = {n: gains for n, (_, *gains) in sorted(curve(protocol).items())}
            axes.plot([*found], [g[0] for g in found.values()], "o-", color=colour, label=protocol)
            for n, (_, low, high) in found.items():
                axes.plot([n, n], [low, high], color=colour, linewidth=1)
            axes.set_xscale("log", base=2)
        lengths = sorted(curve("same_tokens"))
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.minorticks_off()
        axes.set_xlabel("context length (tokens)")
        axes.set_ylabel("gain over the trained length (nats per token)")

    return svg("early-tokens", "Gain over the trained length under two protocols", draw)


def simulation() -> str:
    """Coverage by claim, kind of world and seeds, and power at the difference that a comparison states."""
    made = json.loads((RESULTS / "simulation.json").read_text())
    rate = "{:.1%}".format
    rows = []
    for claim in get_args(Claim):
        for kind, told in made["kinds"].items():
            found: dict[int, list[float]] = {}
            for row in made["worlds"]:
                if (row["claim"], row["kind"]) == (claim, kind):
                    found.setdefault(row["seeds"], []).append(row["covered"] / row["sets"])
            ranges = [f"{rate(min(x))} to {rate(max(x))}" for x in found.values()]
            rows.append([claim, f"{kind}: {told}", *ranges])
    seeds, documents, shares = (
        sorted({row[key] for row in made["worlds"]}) for key in ("seeds", "documents", "share")
    )
    powers = [
        [claim, *(rate(worst_power(made["power"], claim, n)) for n in seeds)]
        for claim in get_args(Claim)
    ]
    one, head = made["one_checkpoint"], [f"{n} seeds" for n in seeds]
    return (
        f"{len(made['worlds'])} worlds: {', '.join(map(str, documents))} documents, shares of the text in the "
        f"variance of {', '.join(f'{s:g}' for s in shares)}; {made['worlds'][0]['sets']:,} data sets each. The lowest "
        "and the highest coverage of the 95 % intervals among them; significantly below 94 % (one-sided 1 %, Holm "
        f"over all): {made['significantly_below']}.\n\n"
        + table(["claim", "world", *head], rows)
        + f"\nOne checkpoint, other passages of the same documents: {rate(one['covered'] / one['sets'])} of "
        f"{one['sets']:,}. How often a difference as large as a comparison says it would find is found (wanted: "
        "80 %), at the worst share of text:\n\n" + table(["claim", *head], powers)
    )


def worst_power(rows: list[dict[str, Any]], claim: str, seeds: int) -> float:
    return min(row["power"] for row in rows if (row["claim"], row["seeds"]) == (claim, seeds))


def replicates() -> str:
    """Real runs: splits of one scheme, then two schemes."""
    file = RESULTS / "replicates.json"
    if not file.exists():
        return missing("replicates")
    made = json.loads(file.read_text())
    claims = [claim for claim in get_args(Claim) if claim in made["same_scheme"][0]]
    same = [
        [r["scheme"], f"{int(r['place']):,}", str(r["splits"]), *(str(r[c]) for c in claims)]
        for r in made["same_scheme"]
    ]
    total = [str(sum(r[key] for r in made["same_scheme"])) for key in ("splits", *claims)]
    first, second = made["seeds"]
    pairs = [
        [
            r["claim"],
            f"{int(r['place']):,}",
            f"{r['estimate']:+.4f} ({r['low']:+.4f} to {r['high']:+.4f})",
            f"{r['p']:.2g}",
            f"{r['p_holm']:.2g}",
        ]
        for r in made["two_schemes"]
    ]
    seeds = " and ".join(f"{len(s)} of {name}" for name, s in made["seeds"].items())
    return (
        f"{seeds}, trained on {made['trained_tokens']:,} tokens at {made['trained_context']}. Halves of one "
        "scheme called different at 5 %:\n\n"
        + table(["scheme", "context", "splits", *claims], [*same, ["all", "", *total]])
        + f"\nLoss of {second} minus loss of {first}, paired by seed and token:\n\n"
        + table(["claim", "context", "difference (95 %)", "p", "p (Holm)"], pairs)
    )


SECTIONS: Mapping[str, Section] = {
    "early_tokens": early_tokens,
    "simulation": simulation,
    "replicates": replicates,
}
