"""How sure a number is: intervals over text, over seeds, and of paired differences.

The unit of text is a run of about 1,024 neighbouring tokens of one document, since the losses of
neighbours depend on each other. What is unusual is that each interval says what it generalises
over. Of one checkpoint only the text can be resampled, so its interval is about that checkpoint;
nothing here ever claims anything about a scheme from one seed. Several seeds read the same blocks,
so seeds and blocks are crossed, not nested, and a claim is of one of two kinds:

* "this text" (the default): what would training with other seeds give on these very tokens? The
  blocks are fixed, so their main effect is no error; what counts is seed/S + residual/(S B), and
  its unbiased estimate is the mean square of seeds over S B with S - 1 degrees of freedom. This is
  the t test over the S seed means: exact for normal seeds, at any S, for any dependence between
  tokens. It is what the literature means by a paired test over seeds.
* "text like it": other seeds and other blocks, both random: seed/S + block/B + residual/(S B). The
  block part is estimated by moments, (MS_block - MS_residual)/(S B), and clipped at zero;
  Satterthwaite's degrees of freedom. The standard error is never smaller, the degrees of freedom
  may be more; approximate where few seeds and many blocks weigh about the same.

seed + residual stay together as MS_seed: clipping the seed part on its own would only make the
interval too wide. Blocks of different size: a block counts by its tokens. The analysis runs on B/N
(sum of nats - mean * tokens) of each block, the linear part of the ratio sum/tokens (Cochran 1977,
ch. 6), whose means over blocks are the token-weighted ones. `benchmarks/simulation.py` checks error
rates and coverage of all of this.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from errors import UserError
from evaluation.protocols import Scores

BLOCK = 1024
RESAMPLES = 4000
CHECKPOINT_UNIT = f"block of {BLOCK} tokens, this checkpoint only"

Claim = Literal["this text", "text like it"]
Runs = Mapping[int, Scores]  # one scheme at one length: the scores of each seed


@dataclass(frozen=True)
class Interval:
    """An estimate in nats per token with its 95 % interval and what that generalises over."""

    estimate: float
    low: float
    high: float
    unit: str
    p_value: float | None = None  # two-sided, that the estimate's true value is zero


@dataclass(frozen=True)
class BlockSums:
    """Sums over the blocks of one target set: nats of S runs (S, B), tokens and document (B,)."""

    nats: np.ndarray
    tokens: np.ndarray
    document: np.ndarray


def block_sums(runs: Sequence[Scores]) -> BlockSums:
    """Raises UserError unless all runs scored the same tokens."""
    first = runs[0]
    for run in runs[1:]:
        _same_targets(first, run)
    label = first.document.astype(np.int64) << 32 | first.index // BLOCK
    blocks, block = np.unique(label, return_inverse=True)
    nats = np.stack([np.bincount(block, run.nats, len(blocks)) for run in runs])
    return BlockSums(nats, np.bincount(block).astype(np.float64), blocks >> 32)


def _same_targets(a: Scores, b: Scores) -> None:
    if not (np.array_equal(a.document, b.document) and np.array_equal(a.index, b.index)):
        raise UserError(
            "the results were not scored on the same tokens: evaluate the runs again with equal "
            "lengths, eval.targets and eval.block"
        )


def block_interval(scores: Scores) -> Interval | None:
    """Loss of one checkpoint, no claim about a scheme; None where the text is a single block."""
    sums = block_sums([scores])
    if len(sums.tokens) < 2:
        return None
    loss = float(sums.nats.sum() / sums.tokens.sum())
    return Interval(loss, *bootstrap(sums.nats[0], sums.tokens, sums.document), CHECKPOINT_UNIT)


def bootstrap(nats: np.ndarray, tokens: np.ndarray, document: np.ndarray) -> tuple[float, float]:
    """95 % block bootstrap of sum(nats)/sum(tokens), stratified by document; three arrays (B,).

    n blocks of a document are resampled as n - 1 draws of weight n/(n - 1), which makes the
    variance unbiased even for two blocks (Rao and Wu 1988), and the percentiles are those of
    Student's t (Hesterberg 2015), so that few blocks do not make a narrow interval. The same input
    always gives the same interval.
    """
    strata, rng = _strata(document), np.random.default_rng(0)
    total, size = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for stratum in np.unique(strata):
        at = np.flatnonzero(strata == stratum)
        n = len(at)
        rows = max(1, 10_000_000 // n)  # bounds the memory of one draw
        for first in range(0, RESAMPLES, rows):
            part = slice(first, min(first + rows, RESAMPLES))
            draw = at[rng.integers(n, size=(part.stop - first, n - 1))]
            total[part] += nats[draw].sum(1) * (n / (n - 1))
            size[part] += tokens[draw].sum(1) * (n / (n - 1))
    df = len(strata) - len(np.unique(strata))
    tail = stats.norm.sf(stats.t.ppf(0.975, df))
    low, high = np.quantile(total / size, [tail, 1 - tail])
    return float(low), float(high)


def _strata(document: np.ndarray) -> np.ndarray:
    """Documents of one block cannot be resampled alone: pooled, or put with another if only one."""
    _, strata, blocks = np.unique(document, return_inverse=True, return_counts=True)
    alone = blocks[strata] == 1
    if alone.sum() == 1 and not alone.all():
        return np.where(alone, strata[~alone][0], strata)
    return np.where(alone, -1, strata)


def crossed(
    nats: np.ndarray, tokens: np.ndarray, text: Claim = "this text"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard error and degrees of freedom from sums of nats (..., S, B) and tokens (B,)."""
    S, B = nats.shape[-2:]
    mean = nats.sum((-2, -1)) / (S * tokens.sum())
    x = (nats - mean[..., None, None] * tokens) * (B / tokens.sum())  # (..., S, B), mean zero
    seed, block = x.mean(-1, keepdims=True), x.mean(-2, keepdims=True)
    ms_seed = B * (seed**2).sum((-2, -1)) / (S - 1)
    variance, df = ms_seed / (S * B), np.full(mean.shape, S - 1.0)
    if text == "text like it" and B > 1:
        ms_block = S * (block**2).sum((-2, -1)) / (B - 1)
        ms_rest = ((x - seed - block) ** 2).sum((-2, -1)) / ((S - 1) * (B - 1))
        total = ms_seed + ms_block - ms_rest
        spread = ms_seed**2 + ms_block**2 * (S - 1) / (B - 1) + ms_rest**2 / (B - 1)
        with np.errstate(invalid="ignore"):
            satterthwaite = np.maximum(S - 1, (S - 1) * total**2 / spread)
        found = ms_block > ms_rest  # else the block part is clipped at zero
        variance = np.where(found, total / (S * B), variance)
        df = np.where(found, satterthwaite, df)
    return mean, np.sqrt(variance), df


def p_value(mean: np.ndarray, error: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Two-sided, of a true mean of zero; 1 where two schemes agree in every bit."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(mean == 0, 1.0, 2 * stats.t.sf(np.abs(mean) / error, df))


def scheme_interval(runs: Runs, text: Claim = "this text") -> Interval | None:
    """Loss of a scheme over its seeds; None from one seed, which says nothing about a scheme.

    None also where nothing was scored, as at a length that the scheme does not support.
    """
    if len(runs) < 2:
        return None
    sums = block_sums(list(runs.values()))
    if not len(sums.tokens):
        return None
    mean, error, df = crossed(sums.nats, sums.tokens, text)
    reach = stats.t.ppf(0.975, df) * error
    unit = f"{len(runs)} seeds, {text}"
    if text == "text like it":
        unit = f"{len(runs)} seeds x {len(sums.tokens)} blocks of {BLOCK} tokens, {text}"
    p = float(p_value(mean, error, df))
    return Interval(float(mean), float(mean - reach), float(mean + reach), unit, p)


def paired_difference(a: Runs, b: Runs, text: Claim = "this text") -> Interval | None:
    """Loss of a minus loss of b, paired by seed and token, over the seeds that both have.

    None unless they share two seeds. Pairing removes the text's difficulty and whatever a seed
    gives both schemes alike; the claim is about the two schemes over seeds, on this text or on text
    like it (see the top of the file).
    """
    return scheme_interval(_difference(a, b), text)


def context_gain(crop: Runs, long: Runs, text: Claim = "this text") -> Interval | None:
    """Loss with the context cropped minus loss with the long one, same tokens: positive is a gain.

    Of one seed, a block bootstrap about that checkpoint; of several, crossed. None without a shared
    seed.
    """
    gain = _difference(crop, long)
    if len(gain) == 1:
        return block_interval(next(iter(gain.values())))
    return scheme_interval(gain, text)


def _difference(a: Runs, b: Runs) -> dict[int, Scores]:
    shared = sorted(a.keys() & b.keys())
    for seed in shared:
        _same_targets(a[seed], b[seed])
    return {s: replace(a[s], nats=a[s].nats.astype(np.float64) - b[s].nats) for s in shared}


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p values, in the order given: reject those at or below the level."""
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1)
    return adjusted[np.argsort(order, kind="stable")].tolist()
