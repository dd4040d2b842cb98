"""Intervals and tests against plain formulas, scipy, and simulated runs whose truth is known."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.simulation import EFFECTS, FILE, POWER, simulate
from errors import UserError
from evaluation import statistics
from evaluation.protocols import Scores
from evaluation.statistics import (
    BLOCK,
    block_interval,
    context_gain,
    crossed,
    holm,
    paired_difference,
    scheme_interval,
)

SIZES = (5 * BLOCK + 300, 3 * BLOCK, 700, 900)  # tokens of the documents; the last two: one block


def run_of(seed: int, mean: float = 3.0, sizes: tuple[int, ...] = SIZES) -> Scores:
    """One run: what its seed brings, above a text that is the same for all runs."""
    document = np.repeat(np.arange(len(sizes)), sizes)
    index = np.concatenate([np.arange(1, size + 1) for size in sizes])
    text = np.random.default_rng(99).gamma(1.0, 1.0, len(index))
    own = np.random.default_rng(seed).normal(mean, 0.5, len(index))
    ones = np.ones(len(index), np.int32)
    return Scores((text + own).astype(np.float32), document, index, ones)


def loss(scores: Scores) -> float:
    return float(scores.nats.mean(dtype=np.float64))


def test_one_checkpoint_agrees_with_the_formula_for_a_stratified_ratio():
    scores = run_of(1)
    sums = statistics.block_sums([scores])
    residual = sums.nats[0] - loss(scores) * sums.tokens
    strata = np.where(np.isin(sums.document, [2, 3]), -1, sums.document)
    variance, df = 0.0, 0
    for stratum in np.unique(strata):
        x = residual[strata == stratum]
        variance += len(x) * x.var(ddof=1)
        df += len(x) - 1
    reach = stats.t.ppf(0.975, df) * np.sqrt(variance) / sums.tokens.sum()
    interval = block_interval(scores)
    assert interval is not None and "this checkpoint only" in interval.unit
    assert interval.estimate == pytest.approx(loss(scores), rel=1e-9)
    assert interval.high - interval.low == pytest.approx(2 * reach, rel=0.1)
    assert interval == block_interval(scores)


def test_blocks_stay_within_documents_and_keep_all_tokens():
    sums = statistics.block_sums([run_of(1)])
    assert sums.tokens.sum() == sum(SIZES)
    assert sums.nats.sum() == pytest.approx(run_of(1).nats.sum(dtype=np.float64))
    assert sums.document.tolist() == [0] * 6 + [1] * 4 + [2, 3]  # index 1024 opens a block
    assert sums.tokens.max() <= BLOCK


@pytest.mark.parametrize("sizes", [(700,) * 6, (700, 3000), (3000, 700), (700, 800)], ids=str)
def test_documents_of_one_block_still_have_an_interval(sizes):
    interval = block_interval(run_of(1, sizes=sizes))
    assert interval is not None
    assert interval.low < interval.estimate < interval.high


def test_a_single_block_has_none():
    assert block_interval(run_of(1, sizes=(800,))) is None


def runs_of(means: list[float], first: int = 0) -> dict[int, Scores]:
    return {seed: run_of(first + seed, mean) for seed, mean in enumerate(means)}


def test_a_claim_about_this_text_is_the_t_test_over_seed_means():
    a, b = runs_of([3.0, 3.02, 2.99, 3.01]), runs_of([3.03, 3.03, 3.05, 3.0], first=50)
    expected = stats.ttest_rel([loss(r) for r in a.values()], [loss(r) for r in b.values()])
    found = paired_difference(a, b)
    assert found is not None and "4 seeds, this text" in found.unit
    interval = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-5)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-5)
    assert found.estimate == pytest.approx(np.mean([loss(a[s]) - loss(b[s]) for s in a]), rel=1e-5)


def anova(y: np.ndarray) -> tuple[float, float]:
    """Variance of the mean and degrees of freedom of a two-way table, written out."""
    S, B = y.shape
    seeds, blocks, mean = y.mean(1), y.mean(0), y.mean()
    cells = list(itertools.product(range(S), range(B)))
    ms_seed = B * sum((seeds[s] - mean) ** 2 for s in range(S)) / (S - 1)
    ms_block = S * sum((blocks[b] - mean) ** 2 for b in range(B)) / (B - 1)
    rest = sum((y[s, b] - seeds[s] - blocks[b] + mean) ** 2 for s, b in cells)
    ms_rest = rest / ((S - 1) * (B - 1))
    parts = {S - 1: ms_seed / (S * B)}
    if ms_block <= ms_rest:
        return parts[S - 1], S - 1
    variance = (ms_seed + ms_block - ms_rest) / (S * B)
    squares = (ms_seed**2 / (S - 1), ms_block**2 / (B - 1), ms_rest**2 / ((S - 1) * (B - 1)))
    return variance, max(S - 1, (variance * S * B) ** 2 / sum(squares))


@pytest.mark.parametrize("block_sd", [0.0, 0.1])
def test_a_claim_about_text_like_it_is_the_two_way_table(block_sd):
    rng = np.random.default_rng(0)
    size = (200, 4, 9)
    y = rng.normal(0, 0.1, size) + rng.normal(0, 0.03, (200, 4, 1))
    y += rng.normal(0, block_sd, (200, 1, 9))
    mean, error, df = crossed(y * 10, np.full(9, 10.0), "text like it")
    expected = np.array([anova(table) for table in y])
    np.testing.assert_allclose(mean, y.mean((1, 2)))
    np.testing.assert_allclose(error**2, expected[:, 0])
    np.testing.assert_allclose(df, expected[:, 1])
    clipped = (expected[:, 1] == 3).mean()
    assert clipped > 0.3 if block_sd == 0 else clipped < 0.3  # both branches are met


def test_other_text_only_widens_a_claim():
    a, b = runs_of([3.0, 3.02, 2.99]), runs_of([3.03, 3.03, 3.05], first=50)
    for this, like in (
        (paired_difference(a, b), paired_difference(a, b, "text like it")),
        (scheme_interval(a), scheme_interval(a, "text like it")),
    ):
        assert this is not None and like is not None
        assert this.estimate == like.estimate and "text like it" in like.unit
        _, narrow, _ = crossed(*_table(a))
        _, wide, _ = crossed(*_table(a), "text like it")
        assert narrow <= wide


def _table(runs: dict[int, Scores]) -> tuple[np.ndarray, np.ndarray]:
    sums = statistics.block_sums(list(runs.values()))
    return sums.nats, sums.tokens


def test_one_seed_claims_nothing_about_a_scheme():
    one, two = {1: run_of(1)}, {1: run_of(2), 2: run_of(3)}
    assert scheme_interval(one) is None
    assert paired_difference(one, two) is None
    assert scheme_interval(two) is not None
    gain = context_gain(one, two)
    assert gain is not None and gain.p_value is None and "this checkpoint only" in gain.unit
    assert context_gain({1: run_of(1)}, {2: run_of(2)}) is None


def test_pairs_are_made_by_seed_not_by_order():
    a, b = runs_of([3.0, 3.1, 3.2]), runs_of([3.01, 3.11, 3.22], first=50)
    shuffled = {seed: b[seed] for seed in (2, 0, 1)} | {7: run_of(7, 9.0)}
    assert paired_difference(a, shuffled) == paired_difference(a, b)


def test_equal_schemes_do_not_differ():
    a = runs_of([3.0, 3.1])
    found = paired_difference(a, dict(a))
    assert found is not None
    assert (found.estimate, found.low, found.high, found.p_value) == (0, 0, 0, 1)


def test_different_targets_are_never_compared():
    a = runs_of([3.0, 3.1])
    shifted = {s: Scores(r.nats, r.document, r.index + 1, r.bytes) for s, r in a.items()}
    for compare in (paired_difference, context_gain):
        with pytest.raises(UserError, match="same tokens"):
            compare(a, shifted)
    with pytest.raises(UserError, match="same tokens"):
        scheme_interval({0: a[0], 1: shifted[1]})


def test_nothing_scored_is_no_claim():
    empty = Scores(*(np.empty(0, kind) for kind in ("f4", "i4", "i4", "i4")))
    assert scheme_interval({1: empty, 2: empty}) is None
    assert context_gain({1: empty}, {1: empty}) is None


def test_context_gain_is_crop_minus_long():
    crop, long = runs_of([3.1, 3.1, 3.1]), runs_of([3.0, 3.0, 3.0], first=50)
    for seeds in ([0], [0, 1, 2]):
        found = context_gain({s: crop[s] for s in seeds}, {s: long[s] for s in seeds})
        assert found is not None and 0 < found.low < 0.1 < found.high
    alone = context_gain({0: crop[0]}, {0: long[0]})
    loose = block_interval(crop[0])
    assert alone is not None and loose is not None
    assert alone.high - alone.low < (loose.high - loose.low) / 1.2  # pairing removes the text


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_the_step_down_rule(p):
    adjusted = holm(p)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[i] * (len(p) - rank) > level:
                break
            rejected.add(i)
        assert {i for i, value in enumerate(adjusted) if value <= level} == rejected
    assert all(a >= b for a, b in zip(adjusted, p, strict=True))


COMMITTED = json.loads(FILE.read_text())


def test_the_committed_simulation_keeps_its_promises():
    assert COMMITTED["data_sets"] >= 1000 and COMMITTED["effects"] == list(EFFECTS)
    for name, rates in COMMITTED["rates"].items():
        assert 0.93 <= rates["coverage"] <= 0.97, name
        if name != "one checkpoint":
            assert 0.03 <= rates["false_positives"] <= 0.07, name
            assert rates["power"] == sorted(rates["power"])
            assert rates["power"][EFFECTS.index(rates["effect"])] >= POWER
    stated = [
        [COMMITTED["rates"][f"paired difference, {text}, {n} seeds"]["effect"] for n in (3, 5)]
        for text in ("this text", "text like it")
    ]
    assert all(five < three for three, five in stated)


def test_a_simulation_of_fewer_data_sets_agrees_with_the_committed_one():
    """Within 3.5 standard deviations of the small one's rates."""
    sets = 250
    rates = simulate(sets, seed=1)
    assert rates.keys() == COMMITTED["rates"].keys()
    for name, found in rates.items():
        wanted = COMMITTED["rates"][name]
        for rate in found.keys() - {"effect"}:
            p = np.array(wanted[rate])
            reach = 3.5 * np.sqrt(p * (1 - p) * (1 / sets + 1 / COMMITTED["data_sets"])) + 2 / sets
            assert (np.abs(np.array(found[rate]) - p) <= reach).all(), (name, rate, found[rate], p)
