"""Intervals and tests against plain formulas, scipy, and simulated runs whose truth is known."""

import json
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks import simulation
from errors import UserError
from evaluation import statistics
from evaluation.protocols import Scores
from evaluation.statistics import (
    BLOCK,
    Claim,
    block_interval,
    context_gain,
    detectable,
    half_width,
    holm,
    p_value,
    paired_difference,
    scheme_interval,
    variances,
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
    sums = statistics.unit_sums([scores], BLOCK)
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
    sums = statistics.unit_sums([run_of(1)], BLOCK)
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


def table(seed: int, S: int, D: int, document_sd: float = 0.1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y = rng.normal(0, 0.1, (S, D)) + rng.normal(0, 0.03, (S, 1))
    return y + rng.normal(0.02, document_sd, (1, D))


@pytest.mark.parametrize(("S", "D"), [(2, 2), (2, 7), (5, 2), (4, 9)])
def test_a_claim_about_text_like_it_adds_the_squares_of_two_t_tests(S, D):
    """Documents of one length: half-width^2 = t^2(S-1) MS_seed / (S D) + t^2(D-1) MS_document / (S D)."""
    y = table(S + D, S, D)
    mean, parts = variances(y * 10, np.full(D, 10.0), "text like it")
    ms_seed = D * sum((y[s].mean() - y.mean()) ** 2 for s in range(S)) / (S - 1)
    ms_document = S * sum((y[:, d].mean() - y.mean()) ** 2 for d in range(D)) / (D - 1)
    squares = (
        stats.t.ppf(0.975, S - 1) ** 2 * ms_seed + stats.t.ppf(0.975, D - 1) ** 2 * ms_document
    )
    assert mean == pytest.approx(y.mean())
    assert half_width(parts) == pytest.approx(np.sqrt(squares / (S * D)))


def test_documents_of_unequal_length_have_an_unbiased_variance():
    """Where documents vary alike: a long one beside a short one is nearly one document, and is counted so."""
    rng, tokens = np.random.default_rng(0), np.array([1000.0, 100.0, 10.0])
    y = np.repeat(rng.normal(0, 1, (20_000, 1, 3)), 2, axis=1)
    mean, (_, (variance, df)) = variances(y * tokens, tokens, "text like it")
    np.testing.assert_allclose(mean, (y[:, 0] * tokens).sum(-1) / tokens.sum())
    assert variance.mean() == pytest.approx(mean.var(), rel=0.05)
    assert 1 < df < 1.3
    _, (_, (_, even)) = variances(y, np.ones(3), "text like it")
    assert even == pytest.approx(2)


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 9), st.floats(0, 1))
def test_a_claim_about_other_text_is_never_the_narrower_nor_the_surer(seed, S, D, document_sd):
    y, tokens = table(seed, S, D, document_sd), np.random.default_rng(seed).uniform(10, 500, D)
    (mean, this), (same, like) = (variances(y * tokens, tokens, text) for text in get_args(Claim))
    assert mean == same and half_width(this) <= half_width(like)
    assert p_value(float(mean), this) <= p_value(float(mean), like) + 1e-12


@given(st.integers(0, 10**6), st.sampled_from(get_args(Claim)))
def test_p_and_interval_say_the_same(seed, text):
    y = table(seed, 3, 5) * np.random.default_rng(seed).choice([0.1, 1, 20])
    mean, parts = variances(y + 0.05, np.ones(5), text)
    p = p_value(float(mean), parts)
    assert half_width(parts, p) == pytest.approx(abs(mean), rel=1e-6)
    assert (p < 0.05) == (abs(mean) > half_width(parts))


def test_other_text_needs_two_documents():
    one = {seed: run_of(seed, sizes=(9000,)) for seed in (1, 2, 3)}
    assert scheme_interval(one) is not None
    assert scheme_interval(one, "text like it") is None
    two = {seed: run_of(seed, sizes=(5000, 4000)) for seed in (1, 2, 3)}
    found = scheme_interval(two, "text like it")
    assert found is not None and found.unit == "3 seeds x 2 documents, text like it"


def test_units_are_documents_whatever_their_blocks():
    sums = statistics.unit_sums([run_of(1)])
    assert sums.document.tolist() == [0, 1, 2, 3] and sums.tokens.tolist() == list(SIZES)


@pytest.mark.parametrize("S", [2, 3, 5, 20])
def test_what_is_detectable_is_found_four_times_in_five(S):
    effect = detectable([(np.float64(1 / S), S - 1.0)])
    x = np.random.default_rng(S).normal(effect, 1, (40_000, S))
    found = stats.ttest_1samp(x, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.01)


def test_a_comparison_says_what_it_could_have_found():
    a, b = runs_of([3.0, 3.02, 2.99]), runs_of([3.03, 3.03, 3.05], first=50)
    found = paired_difference(a, b)
    assert found is not None and found.detectable is not None
    reach = (found.high - found.low) / 2
    assert found.detectable == pytest.approx(reach * 5.653489 / stats.t.ppf(0.975, 2), rel=1e-4)
    wide = paired_difference(a, b, "text like it")
    assert wide is not None and wide.detectable and wide.detectable > found.detectable


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


@pytest.mark.parametrize(
    ("p", "wanted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.01, 0.01, 0.01], [0.03, 0.03, 0.03]),
        ([0.001, 0.02, 0.02, 0.9], [0.004, 0.06, 0.06, 0.9]),
        ([0.6, 0.5], [1.0, 1.0]),
        ([0.03], [0.03]),
    ],
)
def test_holm_by_hand(p, wanted):
    assert holm(p) == pytest.approx(wanted)


COMMITTED = json.loads(simulation.FILE.read_text())


def test_no_committed_world_covers_too_little():
    """False positives are what coverage lacks: 94 % of coverage is 6 % of them."""
    rows = COMMITTED["worlds"]
    wanted = {
        (*vars(world).values(), claim) for world in simulation.worlds() for claim in get_args(Claim)
    }
    keys = ("kind", "seeds", "documents", "share", "claim")
    assert {tuple(row[key] for key in keys) for row in rows} == wanted
    assert len(rows) == len(wanted) and all(row["sets"] >= 2000 for row in rows)
    assert simulation.significantly_below(rows) == []
    checkpoint = COMMITTED["one_checkpoint"]
    assert simulation.below(checkpoint["covered"], checkpoint["sets"]) > 0.01
    assert all(row["power"] >= 0.78 for row in COMMITTED["power"])


@pytest.mark.parametrize("kind", simulation.KINDS)
def test_the_simulation_is_rebuilt_by_its_command(kind):
    """Some of its worlds again, to the last data set."""
    for row in [row for row in COMMITTED["worlds"] if row["kind"] == kind][::37]:
        world = simulation.World(kind, row["seeds"], row["documents"], row["share"])
        again = world.covered(row["claim"], row["sets"], int(row["sets"] > simulation.SETS))
        assert abs(again - row["covered"]) <= 1  # of another processor's rounding


def test_the_simulation_sees_intervals_that_are_too_narrow(monkeypatch):
    monkeypatch.setattr(simulation, "half_width", lambda parts: 0.85 * half_width(parts))
    monkeypatch.setattr(simulation, "SEEDS", (5,))
    rows = simulation.coverage(2000, 2000)
    assert any(row["claim"] == "this text" for row in simulation.significantly_below(rows))
