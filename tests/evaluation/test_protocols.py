"""Every plan against a slow, plain re-implementation, and against what it promises."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from errors import UserError
from evaluation import protocols
from evaluation.protocols import Plan

documents_of = st.lists(st.integers(0, 40), min_size=1, max_size=6)
lengths = st.integers(1, 15)


def windows(plan: Plan) -> list[tuple[int, ...]]:
    return list(
        zip(*(x.tolist() for x in (plan.document, plan.start, plan.stop, plan.scored)), strict=True)
    )


def pairs(plan: Plan) -> list[tuple[int, int]]:
    document, index, _ = plan.targets()
    return list(zip(document.tolist(), index.tolist(), strict=True))


def strided(documents: list[int], length: int, stride: int) -> list[tuple[int, ...]]:
    """Hugging Face's loop, over inputs instead of tokens."""
    found = []
    for number, tokens in enumerate(documents):
        before, last = 0, tokens - 1  # the last token is never an input that predicts
        for begin in range(0, max(last, 0), stride):
            end = min(begin + length, last)
            found.append((number, begin, end, end - before))
            before = end
            if end == last:
                break
    return found


def assert_within_documents(plan: Plan, documents: list[int]) -> None:
    for number, start, stop, scored in windows(plan):
        assert 0 <= start < stop <= documents[number] - 1
        assert 1 <= scored <= stop - start <= plan.context_length
    assert plan.input_tokens == sum(stop - start for _, start, stop, _ in windows(plan))


def targets_one_by_one(plan: Plan) -> list[tuple[int, int, int]]:
    return [
        (number, index, index - start)
        for number, start, stop, scored in windows(plan)
        for index in range(stop - scored + 1, stop + 1)
    ]


@given(documents_of, lengths, st.data())
def test_sliding_is_the_strided_loop(documents, length, data):
    stride = data.draw(st.integers(1, length))
    plan = protocols.sliding(np.array(documents), length, stride=stride)
    assert windows(plan) == strided(documents, length, stride)
    assert_within_documents(plan, documents)
    # each token but a document's first exactly once, in order
    assert pairs(plan) == [(d, i) for d, tokens in enumerate(documents) for i in range(1, tokens)]
    for _, index, context in targets_one_by_one(plan):
        assert context >= min(index, length - stride + 1)


def strided_with_bos(documents: list[int], length: int, stride: int) -> list[tuple[int, ...]]:
    """The loop over documents that begin with one token more, which the windows count from -1.

    The second token of those is the text's first and stays unscored.
    """
    found = []
    for number, begin, end, scored in strided([n + 1 for n in documents], length, stride):
        scored -= begin == 0
        if documents[number] > 1 and scored:
            found.append((number, begin - 1, end - 1, scored))
    return found


@given(documents_of, lengths, st.data())
def test_a_bos_costs_one_token_of_text_and_changes_no_target(documents, length, data):
    stride = data.draw(st.integers(1, length))
    sizes = np.array(documents)
    plan = protocols.sliding(sizes, length, stride=stride, bos=True)
    assert windows(plan) == strided_with_bos(documents, length, stride)
    assert pairs(plan) == pairs(protocols.sliding(sizes, length, stride=stride))
    assert max(plan.stop - plan.start, default=0) <= length
    for _, index, context in targets_one_by_one(plan):  # inputs, the BOS among them
        assert context >= min(index + 1, length - stride + 1)
    one = protocols.non_overlapping(sizes, length, bos=True)
    assert windows(one) == windows(protocols.sliding(sizes, length, stride=length, bos=True))


@given(st.integers(1, 5), st.integers(0, 8))
def test_full_windows_are_the_same_with_a_bos(block, more):
    settings = {"longest": 13, "targets": 3 * block, "block": block, "stride": 1}
    for name in ("same_tokens", "per_position"):
        plain, other = (
            protocols.plan(name, np.array([60, 70]), block + more, **settings, bos=bos)
            for bos in (False, True)
        )
        assert windows(plain) == windows(other) and (plain.bos, other.bos) == (False, True)


def test_windows_of_attention():
    plans = [protocols.non_overlapping(np.array([90]), n) for n in (16, 32, 64)]

    def found(*asked):
        under = protocols.under_windows(plans, protocols.attention_windows(asked, 32))
        return [(p.context_length, p.window) for p in under]

    assert found("full", "trained") == [(16, None), (32, None), (64, None), (64, 32)]
    assert found("trained", 32, 16) == [(32, 16), (64, 32), (64, 16)]
    assert found(64) == []
    for wrong in ("half", 0, -1, 2.5, True, None):
        with pytest.raises(UserError, match=r"windows: .* full, trained"):
            found(wrong)


@given(documents_of, lengths)
def test_targets_follow_from_windows(documents, length):
    plan = protocols.non_overlapping(np.array(documents), length)
    assert list(zip(*(x.tolist() for x in plan.targets()), strict=True)) == targets_one_by_one(plan)


@given(documents_of, lengths)
def test_sliding_by_its_length_is_non_overlapping(documents, length):
    one = protocols.non_overlapping(np.array(documents), length)
    assert windows(one) == windows(protocols.sliding(np.array(documents), length, stride=length))
    assert one.stride is None


@given(documents_of, lengths)
def test_stride_one_gives_every_token_all_the_context_there_is(documents, length):
    plan = protocols.sliding(np.array(documents), length, stride=1)
    assert all(context == min(index, length) for _, index, context in targets_one_by_one(plan))


@pytest.mark.parametrize("stride", [0, -1, 9])
def test_impossible_stride_is_refused(stride):
    with pytest.raises(UserError, match=r"eval\.stride"):
        protocols.sliding(np.array([20]), 8, stride=stride)


def slots(documents: list[int], longest: int, block: int) -> list[tuple[int, int]]:
    found = []
    for number, tokens in enumerate(documents):
        begin = longest - block + 1
        while begin + block <= tokens:
            found.append((number, begin))
            begin += block
    return found


@given(documents_of, st.integers(1, 5), st.integers(0, 8), st.data())
def test_same_tokens_takes_the_same_spread_out_blocks_at_every_length(documents, block, more, data):
    longest = block + more
    room = slots(documents, longest, block)
    if not room:
        return
    count = data.draw(st.integers(1, len(room)))
    asked = None
    for length in range(block, longest + 1):
        plan = protocols.same_tokens(
            np.array(documents), length, longest=longest, targets=count * block, block=block
        )
        assert_within_documents(plan, documents)
        assert len(set(pairs(plan))) == count * block
        assert asked in (None, pairs(plan))
        asked = pairs(plan)
        contexts = plan.targets()[2].reshape(count, block)
        assert (contexts == np.arange(length - block + 1, length + 1)).all()
        assert set(plan.stop - plan.start) == {length}
    assert asked is not None
    places = [room.index(pair) for pair in asked[::block]]  # evenly: equal steps, up to rounding
    assert places == [int((k + 0.5) * len(room) / count) for k in range(count)]


@given(documents_of, st.integers(1, 5), st.integers(0, 20), st.integers(1, 20))
def test_too_few_targets_are_refused_with_advice_that_works(documents, block, more, count):
    longest, targets = block + more, count * block
    lengths = np.array(documents)

    def works(longest, targets):
        try:
            protocols.same_tokens(lengths, block, longest=longest, targets=targets, block=block)
        except UserError as error:
            return str(error)
        return True

    complaint = works(longest, targets)
    if complaint is True:
        assert len(slots(documents, longest, block)) >= count
        return
    assert "lengths" in complaint and f"eval.targets={targets}" in complaint
    if advice := re.search(r"set eval\.targets=(\d+)", complaint):
        assert works(longest, int(advice[1])) is True
        assert works(longest, int(advice[1]) + block) is not True
    else:
        assert max(documents) <= longest
    if advice := re.search(r"lengths at or below (\d+)", complaint):
        assert works(int(advice[1]), targets) is True
        assert works(int(advice[1]) + 1, targets) is not True
    else:
        assert works(block, targets) is not True


def test_same_tokens_needs_whole_blocks_that_fit_the_shortest_length():
    documents = np.array([100])
    with pytest.raises(UserError, match=r"eval\.targets=30"):
        protocols.same_tokens(documents, 16, longest=16, targets=30, block=8)
    with pytest.raises(UserError, match=r"eval\.block=32"):
        protocols.same_tokens(documents, 16, longest=64, targets=32, block=32)


@given(documents_of, lengths)
def test_per_position_scores_full_windows_only(documents, length):
    expected = [
        (number, start, start + length, length)
        for number, tokens in enumerate(documents)
        for start in range(0, tokens - length, length)
    ]
    if not expected:
        with pytest.raises(UserError, match=f"lengths={length}"):
            protocols.per_position(np.array(documents), length)
        return
    plan = protocols.per_position(np.array(documents), length)
    assert windows(plan) == expected
    assert_within_documents(plan, documents)


@pytest.mark.parametrize("length", [1, 2, 3, 8, 100, 256])
def test_bins_double_and_cover_each_context_once(length):
    bins = protocols.per_position(np.array([300]), length).bins
    covered = [context for low, high in bins for context in range(low, high + 1)]
    assert covered == list(range(1, length + 1))
    assert all(high == 2 * low - 1 for low, high in bins[:-1])
    assert bins[-1][1] <= 2 * bins[-1][0]


def test_plan_by_name():
    settings = {"longest": 16, "targets": 8, "block": 4, "stride": 2, "bos": False}
    for name in ("same_tokens", "non_overlapping", "sliding", "per_position"):
        plan = protocols.plan(name, np.array([40]), 8, **settings)
        assert (plan.protocol, plan.context_length) == (name, 8)
    with pytest.raises(UserError, match=r"protocols: 'slidng' .*sliding"):
        protocols.plan("slidng", np.array([40]), 8, **settings)
    with pytest.raises(UserError, match="lengths=0"):
        protocols.plan("non_overlapping", np.array([40]), 0, **settings)
