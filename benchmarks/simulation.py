"""Are the intervals and tests of evaluation/statistics.py right? Simulated runs whose truth is
known.

python -m benchmarks.simulation        # some minutes; writes docs/results/simulation.json

Two schemes, up to five seeds, documents of unequal length. What is unusual: everything that real
losses do to an interval is there and larger than in practice. Tokens depend on their neighbours
(autoregressive, 0.9 from one to the next, across blocks); documents differ in difficulty; the
schemes differ by passage, alike for all seeds; every run has its own noise; and training seeds move
a scheme's loss with a standard deviation of 0.015 nats. The code under test is the library's own,
fed with sums over blocks. Power is a curve: a test of so many seeds is good for effects of a size,
and the file states for each the smallest one of a grid that is found in 80 % of the data sets.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from scipy import signal, stats

from evaluation.statistics import BLOCK, Claim, bootstrap, crossed, p_value

DOCUMENTS = (5 * BLOCK + 400,) * 5 + (700, 900)  # tokens: 32 blocks, most of them whole
SEED_SD = 0.015
CORRELATION = 0.9
TEXT_SD, DOCUMENT_SD = 2.5, 0.3  # difficulty of a token, of a document: common to all runs
SCHEME_SD, RUN_SD = 0.5, 0.5  # what a token adds for one scheme in all its seeds, for one run
LOSS = 4.0
SEEDS = (3, 5)
EFFECTS = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12)  # nats per token
POWER = 0.8
FILE = Path(__file__).parents[1] / "docs/results/simulation.json"


def block_noise(rng: np.random.Generator, shape: tuple[int, ...], tokens: int) -> np.ndarray:
    """Sums over blocks, (*shape, blocks), of a stationary first-order process of unit variance."""
    shocks = rng.standard_normal((*shape, tokens), dtype=np.float32)
    shocks[..., 0] /= math.sqrt(1 - CORRELATION**2)  # starts as it goes on
    now, before = (np.array(c, np.float32) for c in ([1 - CORRELATION**2], [1, -CORRELATION]))
    noise = signal.lfilter(np.sqrt(now), before, shocks)
    return np.add.reduceat(noise, np.arange(0, tokens, BLOCK), axis=-1, dtype=np.float64)


class World:
    """`sets` data sets in which two schemes are equally good on average over text like this.

    That one is worse by some effect is only a shift of all its losses: `_paired` makes it.
    """

    def __init__(self, rng: np.random.Generator, sets: int, documents: Sequence[int]) -> None:
        self.tokens = np.concatenate([np.diff([*range(0, n, BLOCK), n]) for n in documents])
        self.document = np.repeat(np.arange(len(documents)), [-(-n // BLOCK) for n in documents])
        difficulty = rng.normal(LOSS, DOCUMENT_SD, (sets, len(documents)))[:, self.document]
        self.scheme_mean = self.average(difficulty * self.tokens)  # (sets,), in these documents
        luck = rng.normal(0, SEED_SD, (sets, 2, max(SEEDS)))
        self.run_mean = self.scheme_mean + luck[:, 0, 0]
        parts = [self._noise(rng, sets, n) for n in documents]
        text, scheme, run = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
        self.gap = self.average(scheme[:, 1, 0] - scheme[:, 0, 0])  # on this very text
        level = difficulty[:, None, None] + luck[..., None]
        self.nats = level * self.tokens + text + scheme + run  # (sets, 2, S, B)

    @staticmethod
    def _noise(rng: np.random.Generator, sets: int, tokens: int) -> tuple[np.ndarray, ...]:
        text = TEXT_SD * block_noise(rng, (sets, 1, 1), tokens)
        scheme = SCHEME_SD * block_noise(rng, (sets, 2, 1), tokens)
        return text, scheme, RUN_SD * block_noise(rng, (sets, 2, max(SEEDS)), tokens)

    def average(self, sums: np.ndarray) -> np.ndarray:
        """Loss per token from sums over blocks (..., B)."""
        return sums.sum(-1) / self.tokens.sum()


Rates = dict[str, dict[str, Any]]


def simulate(
    sets: int, *, documents: Sequence[int] = DOCUMENTS, seed: int = 0, at: int = 250
) -> Rates:
    """Rates over `sets` data sets for each claim and number of seeds, `at` sets in memory.

    `power` is a list, by EFFECTS; `effect` the first of them with a power of POWER, or None.
    """
    rng, found = np.random.default_rng(seed), []
    for first in range(0, sets, at):
        size = min(at, sets - first)
        null, world = World(rng, size, documents), World(rng, size, documents)
        found.append({**_pairs(null, world), "one checkpoint": _checkpoint(world)})
    rates: Rates = {
        name: {
            rate: np.concatenate([part[name][rate] for part in found]).mean(0).round(4).tolist()
            for rate in found[0][name]
        }
        for name in found[0]
    }
    for found_rates in rates.values():
        if powers := found_rates.get("power"):
            enough = [e for e, power in zip(EFFECTS, powers, strict=True) if power >= POWER]
            found_rates["effect"] = min(enough, default=None)
    return rates


def _pairs(null: World, world: World) -> dict[str, dict[str, np.ndarray]]:
    rates = {}
    for text in get_args(Claim):
        for seeds in SEEDS:
            nothing, _ = _paired(null, seeds, text, 0.0)
            shown = [_paired(world, seeds, text, effect) for effect in EFFECTS]
            rates[f"paired difference, {text}, {seeds} seeds"] = {
                "false_positives": nothing,
                "coverage": ~shown[0][1],
                "power": np.stack([found for found, _ in shown], axis=-1),
            }
    return rates


def _paired(world: World, seeds: int, text: Claim, effect: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether each data set shows a difference, and whether its interval misses the true one.

    A claim about this text is wrong or right about this text: its true difference is made `effect`
    there.
    """
    gaps = world.nats[:, 1, :seeds] - world.nats[:, 0, :seeds]
    luck = world.gap if text == "this text" else np.zeros(len(gaps))
    gaps = gaps + (effect - luck)[:, None, None] * world.tokens
    mean, error, df = crossed(gaps, world.tokens, text)
    return p_value(mean, error, df) < 0.05, np.abs(mean - effect) > stats.t.ppf(0.975, df) * error


def _checkpoint(world: World) -> dict[str, np.ndarray]:
    intervals = [bootstrap(nats, world.tokens, world.document) for nats in world.nats[:, 0, 0]]
    low, high = np.array(intervals).T
    return {"coverage": (low <= world.run_mean) & (world.run_mean <= high)}


def main(sets: int = 2000) -> None:
    report = {
        "data_sets": sets,
        "effects": EFFECTS,
        "seed_sd": SEED_SD,
        "correlation": CORRELATION,
        "text_sd": TEXT_SD,
        "document_sd": DOCUMENT_SD,
        "scheme_sd": SCHEME_SD,
        "run_sd": RUN_SD,
        "documents": list(DOCUMENTS),
        "rates": simulate(sets),
    }
    text = json.dumps(report, indent=2, allow_nan=False)
    FILE.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    if "--help" in sys.argv[1:]:
        sys.exit(print(__doc__))
    main()
