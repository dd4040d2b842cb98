"""How sure a number is: intervals over text, over seeds, and of paired differences.

What is unusual is that each interval says what varies in it:

* of one checkpoint, passages: blocks of about 1,024 neighbouring tokens are resampled within their documents. Nothing
  else can vary with one checkpoint, so this says nothing about a scheme, which seeds would change, nor about other
  documents.
* "this text" (the default for several seeds), seeds: what would training with other seeds give on these very tokens?
  The t test over the S seed means: exact for normal seeds, at any S, for any dependence between tokens. It is what
  the literature means by a paired test over seeds.
* "text like it", seeds and documents: other seeds, other documents. All seeds read the same documents, so that the
  two are crossed, and the squares of two half-widths are added (Banerjee 1961; conservative whatever the two
  variances are): that of "this text", and that of the mean over documents, averaged over the seeds. So it is never
  the narrower claim, and never the one with the smaller p value. It needs two documents.

Documents count by their tokens: the mean is total nats / total tokens. With weights w (shares of the tokens) and
document means y, the variance of that mean is estimated by sum(w^2) / (1 - sum(w^2)) * sum(w (y - mean)^2), unbiased
where documents vary alike whatever their size, with Satterthwaite's degrees of freedom of that quadratic form; with
equal sizes it is the t test over documents. `benchmarks/simulation.py` checks the coverage of all of this.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import optimize, stats

from errors import UserError
from evaluation.protocols import Scores

BLOCK = 1024
RESAMPLES = 4000
MOST = -700.0  # logarithm of the smallest p value that is told from 0
CHECKPOINT_UNIT = f"other passages of {BLOCK} tokens of these documents, this checkpoint only"
LEVEL, POWER = 0.05, 0.8

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
    detectable: float | None = None  # nats: the smallest true value found with a power of POWER


@dataclass(frozen=True)
class Sums:
    """Sums over the units of one target set: nats of S runs (S, U), tokens and document (U,)."""

    nats: np.ndarray
    tokens: np.ndarray
    document: np.ndarray


def unit_sums(runs: Sequence[Scores], block: int | None = None) -> Sums:
    """Over blocks of so many neighbouring tokens, or over whole documents.

    Raises UserError unless all runs scored the same tokens.
    """
    first = runs[0]
    for run in runs[1:]:
        _same_targets(first, run)
    part = 0 if block is None else first.index // block
    units, unit = np.unique(first.document.astype(np.int64) << 32 | part, return_inverse=True)
    nats = np.stack([np.bincount(unit, run.nats, len(units)) for run in runs])
    return Sums(nats, np.bincount(unit).astype(np.float64), units >> 32)


def _same_targets(a: Scores, b: Scores) -> None:
    if not (np.array_equal(a.document, b.document) and np.array_equal(a.index, b.index)):
        raise UserError(
            "the results were not scored on the same tokens: evaluate the runs again with equal "
            "lengths, eval.targets and eval.block"
        )


def block_interval(scores: Scores) -> Interval | None:
    """Loss of one checkpoint, no claim about a scheme; None where the text is a single block."""
    sums = unit_sums([scores], BLOCK)
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


Part = tuple[Any, float]  # a variance of the mean, and its degrees of freedom


def variances(nats: np.ndarray, tokens: np.ndarray, text: Claim) -> tuple[np.ndarray, list[Part]]:
    """Mean and the variances that a claim adds up, from sums of nats (..., S, D) and tokens (D,)."""
    S, share = nats.shape[-2], tokens / tokens.sum()
    means = nats.sum(-1) / tokens.sum()  # (..., S)
    mean, parts = means.mean(-1), [(means.var(-1, ddof=1) / S, S - 1.0)]
    if text == "text like it":
        squares = (share**2).sum()
        spread = (share * (nats.mean(-2) / tokens - mean[..., None]) ** 2).sum(-1)
        df = (1 - squares) ** 2 / (squares - 2 * (share**3).sum() + squares**2)
        parts.append((spread * squares / (1 - squares), df))
    return mean, parts


def half_width(parts: Sequence[Part], level: float = LEVEL) -> np.ndarray:
    """Half of the interval that misses the truth with probability `level`."""
    return np.sqrt(sum(stats.t.isf(level / 2, df) ** 2 * variance for variance, df in parts))


def p_value(mean: float, parts: Sequence[Part]) -> float:
    """The level at which the interval just reaches zero; 1 where two schemes agree in every bit."""
    if mean == 0:
        return 1.0
    reach = lambda log: float(half_width(parts, math.exp(log))) - abs(mean)  # noqa: E731
    if reach(MOST) <= 0:
        return 0.0
    return math.exp(optimize.root_scalar(reach, bracket=(MOST, 0.0), xtol=1e-12).root)


def detectable(parts: Sequence[Part]) -> float:
    """The smallest true difference that a test at LEVEL finds with a power of POWER, were these its variances.

    Of one variance by the definition of the t test's power; those of several are added as half-widths are.
    """

    def standard_errors(df: float) -> float:
        critical = stats.t.isf(LEVEL / 2, df)
        drawn = np.sqrt(stats.chi2.ppf((np.arange(10_000) + 0.5) / 10_000, df) / df)  # of the error

        def lacking(d: float) -> float:
            found = stats.norm.sf(critical * drawn - d) + stats.norm.cdf(-critical * drawn - d)
            return POWER - float(found.mean())

        return optimize.root_scalar(lacking, bracket=(0.0, 20 * critical)).root

    return math.sqrt(sum(standard_errors(float(df)) ** 2 * float(v) for v, df in parts))


def scheme_interval(runs: Runs, text: Claim = "this text") -> Interval | None:
    """Loss of a scheme over its seeds; None from one seed, which says nothing about a scheme.

    None also where nothing was scored, as at a length that the scheme does not support, and for a
    claim about text like it where all of the text is one document.
    """
    if len(runs) < 2:
        return None
    sums = unit_sums(list(runs.values()))
    documents = len(sums.tokens)
    if documents < (2 if text == "text like it" else 1):
        return None
    mean, parts = variances(sums.nats, sums.tokens, text)
    value, reach = float(mean), float(half_width(parts))
    unit = f"{len(runs)} seeds, {text}"
    if text == "text like it":
        unit = f"{len(runs)} seeds x {documents} documents, {text}"
    p = p_value(value, parts)
    return Interval(value, value - reach, value + reach, unit, p, detectable(parts))


def paired_difference(a: Runs, b: Runs, text: Claim = "this text") -> Interval | None:
    """Loss of a minus loss of b, paired by seed and token, over the seeds that both have.

    None unless they share two seeds. Pairing removes the text's difficulty and whatever a seed
    gives both schemes alike; the claim is about the two schemes over seeds, on this text or on text
    like it (see the top of the file).
    """
    return scheme_interval(_difference(a, b), text)


def context_gain(crop: Runs, long: Runs, text: Claim = "this text") -> Interval | None:
    """Loss with the context cropped minus loss with the long one, same tokens: positive is a gain.

    Of one seed, a block bootstrap about that checkpoint; of several, as `scheme_interval`. None without a shared
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
