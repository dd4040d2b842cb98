"""Are the intervals and tests of evaluation/statistics.py right? Simulated runs whose truth is known.

python -m benchmarks.simulation        # about a minute; writes docs/results/simulation.json
python -m docs.readme                  # into docs/methodology.md

A world is a table of losses, seeds x documents, drawn many times: the loss of a scheme, or the difference of two
schemes paired by seed, which is such a table too (its document effects are what the schemes' differ by). The variance
of its mean is 1, of which `share` comes from the documents and a fifth of the rest from what each seed makes of each
document. Worlds differ in the numbers of seeds and documents, in the share, and in what is wrong with the ideal case
(KINDS). The test finds a difference exactly where the interval leaves out zero, so that false positives are what
coverage lacks. The code under test is the library's own.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy import signal, stats

from evaluation.statistics import (
    BLOCK,
    LEVEL,
    Claim,
    Part,
    bootstrap,
    detectable,
    half_width,
    holm,
    variances,
)

SEEDS = (2, 3, 5)
DOCUMENTS = (2, 3, 6, 20, 60)
SHARES = (0.0, 0.1, 0.3, 0.6, 0.9)
KINDS = {
    "normal": "everything normal, documents of equal length",
    "correlated": "documents differ only by what their passages share: 2 to 24 blocks, 0.9 from one to the next",
    "heavy tails": "Student's t with 3 degrees of freedom for seeds and for documents",
    "unequal documents": "lengths over more than a factor of ten, short documents vary more",
    "unequal seeds": "one seed varies three times as much as the others",
}
WORST, ALLOWED = (
    0.94,
    0.01,
)  # coverage that no world may lie significantly below, and the level of that test
SETS, MORE = 2_000, 10_000  # data sets a world, and where the first come near the limit
NEAR = 0.1  # p value of being below WORST from which more are drawn
FILE = Path(__file__).parents[1] / "docs/results/simulation.json"


@dataclass(frozen=True)
class World:
    kind: str
    seeds: int
    documents: int
    share: float

    def lengths(self) -> np.ndarray:
        """Of the documents, in blocks; fixed for a world."""
        rng = np.random.default_rng(self.documents)
        if self.kind == "unequal documents":
            return np.maximum(1, np.round(8 * np.exp(rng.normal(0, 1.2, self.documents))))
        if self.kind == "correlated":
            return rng.integers(2, 25, self.documents).astype(float)
        return np.full(self.documents, 8.0)

    def draw(self, sets: int, stream: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sums of nats (sets, S, D), tokens (D,), and each set's true mean on its own documents (sets,)."""
        key = [list(KINDS).index(self.kind), self.seeds, self.documents, round(10 * self.share)]
        rng, tokens = np.random.default_rng([*key, stream]), self.lengths()
        weights = tokens / tokens.sum()
        shape = (sets, self.seeds, 1)
        seed = (
            rng.standard_t(3, shape) if self.kind == "heavy tails" else rng.standard_normal(shape)
        )
        scale = np.ones((self.seeds, 1))
        scale[0] = 3.0 if self.kind == "unequal seeds" else 1.0
        seed = self.scaled(
            seed * scale, np.full(self.seeds, 1 / self.seeds), 0.8 * (1 - self.share), scale
        )
        document = self.document_effects(rng, sets, tokens)
        rest = rng.standard_normal((sets, self.seeds, self.documents))
        rest *= math.sqrt(0.2 * (1 - self.share) * self.seeds / (weights**2).sum())
        truth = (document * weights).sum(-1)
        return (seed + document[:, None] + rest) * tokens, tokens, truth

    def scaled(
        self, x: np.ndarray, weights: np.ndarray, variance: float, scale: np.ndarray
    ) -> np.ndarray:
        own = 3.0 if self.kind == "heavy tails" else 1.0
        return x * math.sqrt(variance / (own * (weights**2 * scale[:, 0] ** 2).sum()))

    def document_effects(
        self, rng: np.random.Generator, sets: int, tokens: np.ndarray
    ) -> np.ndarray:
        """(sets, D), so that their weighted mean has a variance of `share`."""
        weights = tokens / tokens.sum()
        if self.kind == "correlated":
            blocks = correlated(rng, (sets, self.documents), int(tokens.max()))
            inside = np.arange(blocks.shape[-1]) < tokens[:, None]
            effects = (blocks * inside).sum(-1) / tokens
            power = np.array([mean_variance(int(n)) for n in tokens])
        elif self.kind == "heavy tails":
            effects, power = rng.standard_t(3, (sets, self.documents)), np.full(self.documents, 3.0)
        else:
            power = 0.5 + 0.5 * tokens.mean() / tokens
            effects = rng.standard_normal((sets, self.documents)) * np.sqrt(power)
        return effects * math.sqrt(self.share / (weights**2 * power).sum())

    def covered(self, claim: Claim, sets: int, stream: int) -> int:
        nats, tokens, truth = self.draw(sets, stream)
        mean, parts = variances(nats, tokens, claim)
        true = truth if claim == "this text" else 0.0
        return int((np.abs(mean - true) <= half_width(parts)).sum())


def correlated(rng: np.random.Generator, shape: tuple[int, ...], length: int) -> np.ndarray:
    """(*shape, length) of a stationary first-order process of unit variance, 0.9 from one to the next."""
    shocks = rng.standard_normal((*shape, length)) * math.sqrt(1 - 0.9**2)
    shocks[..., 0] /= math.sqrt(1 - 0.9**2)
    return np.asarray(signal.lfilter([1.0], [1.0, -0.9], shocks))


def mean_variance(n: int) -> float:
    """Of the mean of n neighbours of that process."""
    lag = np.arange(n)
    return float((0.9 ** np.abs(lag[:, None] - lag)).mean())


def worlds() -> Iterator[World]:
    for kind in KINDS:
        for seeds in SEEDS:
            for documents in DOCUMENTS:
                for share in SHARES:
                    yield World(kind, seeds, documents, share)


def below(covered: int, sets: int) -> float:
    """p value of a coverage below WORST: exact binomial, one-sided."""
    return float(stats.binom.cdf(covered, sets, WORST))


def coverage(sets: int, more: int) -> list[dict[str, Any]]:
    """For every world and claim how many of how many intervals held the truth."""
    rows = []
    for world in worlds():
        for claim in get_args(Claim):
            size, covered = sets, world.covered(claim, sets, 0)
            if below(covered, sets) < NEAR:  # drawn afresh: the first are not counted twice
                size, covered = more, world.covered(claim, more, 1)
            rows.append({**asdict(world), "claim": claim, "sets": size, "covered": covered})
    return rows


def significantly_below(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    adjusted = holm([below(row["covered"], row["sets"]) for row in rows])
    return [row for row, p in zip(rows, adjusted, strict=True) if p <= ALLOWED]


def power(sets: int) -> list[dict[str, Any]]:
    """Share of data sets in which a difference as large as `detectable` states is found, from the true variances."""
    rows = []
    for claim in get_args(Claim):
        for seeds in SEEDS:
            for share in (0.0, 0.3, 0.9):
                world = World("normal", seeds, 6, share)
                true: list[Part] = [(np.float64(1 - share), seeds - 1.0)]
                if claim == "text like it":
                    true.append((np.float64(share + 0.2 * (1 - share)), world.documents - 1.0))
                effect = detectable(true)
                nats, tokens, truth = world.draw(sets, 2)
                mean, parts = variances(nats + effect * tokens, tokens, claim)
                mean = mean - truth if claim == "this text" else mean
                found = float((np.abs(mean) > half_width(parts)).mean())
                rows.append(
                    {"claim": claim, "seeds": seeds, "share": share, "power": round(found, 4)}
                )
    return rows


def one_checkpoint(sets: int) -> dict[str, int]:
    """The block bootstrap of one checkpoint over passages of given documents, 32 blocks of unequal length."""
    rng = np.random.default_rng(3)
    lengths = (5 * BLOCK + 400,) * 5 + (700, 900)
    tokens = np.concatenate([np.diff([*range(0, n, BLOCK), n]) for n in lengths]).astype(float)
    document = np.repeat(np.arange(len(lengths)), [-(-n // BLOCK) for n in lengths])
    covered = 0
    for _ in range(sets):
        level = rng.normal(4.0, 0.3, len(lengths))[document]
        nats = level * tokens + rng.normal(0, 2.5, len(tokens)) * np.sqrt(19 * tokens)
        low, high = bootstrap(nats, tokens, document)
        covered += low <= float((level * tokens).sum() / tokens.sum()) <= high
    return {"sets": sets, "covered": int(covered)}


def main() -> None:
    rows = coverage(SETS, MORE)
    report = {
        "level": LEVEL,
        "kinds": KINDS,
        "significantly_below": len(significantly_below(rows)),
        "one_checkpoint": one_checkpoint(SETS),
        "power": power(MORE),
        "worlds": rows,
    }
    head, _, tail = json.dumps(report | {"worlds": []}, indent=1, allow_nan=False).rpartition("[]")
    lines = ",\n".join("  " + json.dumps(row, allow_nan=False) for row in rows)
    FILE.write_text(f"{head}[\n{lines}\n ]{tail}\n")
    print(f"{len(rows)} worlds, {report['significantly_below']} significantly below {WORST:.0%}")
    print(f"done: {FILE}\nnext: python -m docs.readme")


if __name__ == "__main__":
    if "--help" in sys.argv[1:]:
        sys.exit(print(__doc__))
    main()
