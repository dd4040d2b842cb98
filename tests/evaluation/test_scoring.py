"""The scorer against models whose losses are known, and against loops that take one token at a
time.
"""

import math
import threading
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evaluation import protocols
from evaluation.protocols import Plan, Scores
from evaluation.scoring import batches, document_lengths, score

V = 7
EOS = V  # one more than any token of the text
LENGTHS = (8, 16, 24)


@dataclass(frozen=True)
class FakeSplit:
    tokens: np.ndarray
    offsets: np.ndarray
    token_bytes: np.ndarray


def split_of(documents: list[np.ndarray]) -> FakeSplit:
    tokens = np.concatenate([np.append(document, EOS) for document in documents])
    offsets = np.cumsum([0, *(len(document) + 1 for document in documents)])
    return FakeSplit(tokens.astype(np.uint16), offsets, np.append(np.arange(V) % 4 + 1, 0))


def random_split(sizes: list[int], seed: int = 0) -> FakeSplit:
    rng = np.random.default_rng(seed)
    return split_of([rng.integers(V, size=size) for size in sizes])


def uniform(tokens: Tensor, targets: Tensor) -> Tensor:
    assert targets.max() < EOS
    logits = torch.zeros(*targets.shape, V)
    return -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def bigram(tokens: Tensor, targets: Tensor, table: Tensor) -> Tensor:
    assert torch.equal(tokens[:, tokens.shape[1] - targets.shape[1] + 1 :], targets[:, :-1])
    return -table[tokens[:, -targets.shape[1] :], targets].log()


def counting(tokens: Tensor, targets: Tensor) -> Tensor:
    """Predicts by add-one counts of all it has read: every token of context changes the answer."""
    seen = torch.nn.functional.one_hot(tokens, V + 1).double().cumsum(1)[:, -targets.shape[1] :]
    p = (seen + 1) / (seen + 1).sum(-1, keepdim=True)
    return -p.gather(-1, targets[..., None])[..., 0].log().float()


def counting_loss(context: np.ndarray, target: int) -> float:
    return -math.log((np.count_nonzero(context == target) + 1) / (len(context) + V + 1))


run = partial(score, tokens_per_batch=40, device="cpu")


def total(scores: Scores) -> float:
    return float(scores.nats.sum(dtype=np.float64))


def plans(split: FakeSplit, bos: bool = False) -> list[Plan]:
    settings = {"longest": max(LENGTHS), "targets": 24, "block": 4, "stride": 3, "bos": bos}
    names = ("same_tokens", "non_overlapping", "sliding", "per_position")
    documents = document_lengths(split)
    return [protocols.plan(n, documents, length, **settings) for n in names for length in LENGTHS]


@pytest.mark.parametrize("bos", [False, True])
def test_equal_logits_score_the_logarithm_of_the_vocabulary_everywhere(bos):
    split = random_split([60, 1, 25, 33])
    for plan in plans(split, bos):
        scores = run(uniform, split, plan)
        assert len(scores) == plan.scored.sum() > 0
        assert total(scores) / len(scores) == pytest.approx(math.log(V), abs=1e-6)


def test_a_markov_source_scores_its_cross_entropy_under_every_plan():
    rng = np.random.default_rng(1)
    table = rng.dirichlet(np.ones(V), size=V)
    documents = []
    for size in (70, 40, 2, 90):
        document = [0]
        while len(document) < size:
            document.append(int(rng.choice(V, p=table[document[-1]])))
        documents.append(np.array(document))
    split = split_of(documents)
    nats_fn = partial(bigram, table=torch.tensor(table))
    for plan in plans(split):
        scores = run(nats_fn, split, plan)
        expected = [
            -math.log(table[documents[d][i - 1], documents[d][i]])
            for d, i in zip(scores.document, scores.index, strict=True)
        ]
        assert total(scores) / len(scores) == pytest.approx(np.mean(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("length", "stride", "counts"),
    [(9, 9, [9]), (5, 3, [5, 3, 1]), (6, 3, [6, 3])],  # 5 inputs are a window of 6 tokens
)
def test_strided_perplexity_is_that_of_one_window(length, stride, counts):
    rows = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.25] * 4]
    split = split_of([np.array([0, 0, 1, 1, 2, 3, 3, 0, 2, 2])])
    plan = protocols.sliding(document_lengths(split), length, stride=stride)
    scores = run(partial(bigram, table=torch.tensor(rows)), split, plan)
    assert plan.scored.tolist() == counts
    assert len(scores) == 9
    assert math.exp(total(scores) / len(scores)) == pytest.approx(4.264514, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.integers(1, 12),
    st.booleans(),
    st.data(),
)
def test_every_target_has_exactly_the_context_its_plan_says(sizes, length, bos, data):
    split = random_split(sizes)
    stride = data.draw(st.integers(1, length))
    plan = protocols.sliding(document_lengths(split), length, stride=stride, bos=bos)
    scores = run(counting, split, plan)
    document, index, context = plan.targets()
    assert np.array_equal(scores.document, document) and np.array_equal(scores.index, index)
    for d, i, c, nats, size in zip(
        document, index, context, scores.nats, scores.bytes, strict=True
    ):
        text = split.tokens[split.offsets[d] : split.offsets[d + 1] - 1]
        context = np.append(EOS, text[i - c + 1 : i]) if bos else text[i - c : i]
        assert len(context) == c
        assert nats == pytest.approx(counting_loss(context, int(text[i])), rel=1e-5)
        assert size == text[i] % 4 + 1


@pytest.mark.parametrize("name", ["same_tokens", "non_overlapping", "sliding", "per_position"])
@pytest.mark.parametrize("length", [1, 2, 8])
def test_bos_is_the_first_input_of_every_window_and_the_rest_is_text(name, length):
    split = random_split([40, 1, 9, 0, 2])
    settings = {"longest": 8, "targets": 3, "block": 1, "stride": 1, "bos": True}
    plan = protocols.plan(name, document_lengths(split), length, **settings)

    def reads(tokens: Tensor, targets: Tensor) -> Tensor:
        assert tokens.shape[1] <= length and (tokens[:, 0] == EOS).all()
        whole = torch.cat([tokens[:, 1:], targets[:, -1:]], dim=1).tolist()
        assert (torch.tensor(whole) < EOS).all()
        texts = [split.tokens[a : b - 1].tolist() for a, b in pairwise(split.offsets)]
        for row in whole:  # a run of neighbours in one document
            assert any(row == t[i : i + len(row)] for t in texts for i in range(len(t)))
        return torch.zeros(targets.shape)

    assert len(run(reads, split, plan)) > 0


def test_stride_one_is_the_naive_loop():
    split = random_split([40])
    text = split.tokens[:40]
    plan = protocols.sliding(document_lengths(split), 6, stride=1)
    naive = [counting_loss(text[max(0, i - 6) : i], text[i]) for i in range(1, 40)]
    assert run(counting, split, plan).nats == pytest.approx(naive, rel=1e-5)


def test_batch_size_changes_nothing():
    split = random_split([10, 64, 31, 17, 23, 49, 11])
    for plan in plans(split):
        one, three, eight = (
            score(counting, split, plan, tokens_per_batch=b * plan.context_length, device="cpu")
            for b in (1, 3, 8)
        )
        for other in (three, eight):
            np.testing.assert_allclose(one.nats, other.nats, rtol=1e-6)
            assert np.array_equal(one.index, other.index)


def test_batches_are_never_padded_nor_larger_than_asked():
    plan = protocols.sliding(np.array([90, 10, 0, 31]), 16, stride=5)
    for budget in (1, 40, 64):
        found = batches(plan, budget)
        for batch in found:
            sizes = set(zip((plan.stop - plan.start)[batch], plan.scored[batch], strict=True))
            assert len(sizes) == 1
            ((inputs, _),) = sizes
            assert len(batch) == 1 or len(batch) * inputs <= budget
        assert sorted(np.concatenate(found)) == list(range(len(plan.start)))


class Threads:
    """Processes in small: `gather` waits for all of them and joins what they bring."""

    def __init__(self, world: int) -> None:
        self.world, self.barrier = world, threading.Barrier(world, timeout=20)
        self.parts: list[np.ndarray] = [np.empty(0)] * world

    def gather(self, rank: int, own: np.ndarray) -> np.ndarray:
        self.parts[rank] = own
        self.barrier.wait()
        whole = np.concatenate(self.parts)
        self.barrier.wait()
        return whole

    def scores(self, split: FakeSplit, plan: Plan) -> tuple[list[Scores], list[int]]:
        found: dict[int, Scores] = {}
        read = [0] * self.world

        def work(rank: int) -> None:
            found[rank] = run(
                counting,
                split,
                plan,
                progress=lambda done: read.__setitem__(rank, done),
                rank=rank,
                world=self.world,
                gather=partial(self.gather, rank),
            )

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[rank] for rank in range(self.world)], read


@pytest.mark.parametrize("sizes", [[20, 31, 12, 44, 5], [9]])  # the last leaves a process idle
def test_two_processes_score_everything_once(sizes):
    split = random_split(sizes)
    plan = protocols.non_overlapping(document_lengths(split), 8)
    alone = run(counting, split, plan)
    together, read = Threads(2).scores(split, plan)
    for scores in together:
        assert len(scores) == len(alone)
        np.testing.assert_allclose(scores.nats, alone.nats, rtol=1e-6)
    assert sum(read) == plan.input_tokens


def test_what_is_counted_twice_is_noticed():
    split = random_split([20])
    plan = protocols.non_overlapping(document_lengths(split), 8)
    with pytest.raises(RuntimeError, match="twice"):
        run(counting, split, plan, gather=lambda own: np.concatenate([own, own]))


def test_progress_ends_at_the_cost_told_beforehand():
    split = random_split([30, 7, 50])
    plan = protocols.sliding(document_lengths(split), 8, stride=2)
    told: list[int] = []
    run(uniform, split, plan, progress=told.append)
    assert told == sorted(set(told)) and told[-1] == plan.input_tokens


def test_nothing_to_score_is_an_empty_answer():
    split = random_split([1, 0])
    assert len(run(uniform, split, protocols.non_overlapping(document_lengths(split), 8))) == 0


def test_a_plan_for_other_documents_is_refused():
    with pytest.raises(ValueError, match="leaves its document"):
        run(uniform, random_split([10, 10]), protocols.non_overlapping(np.array([11, 9]), 8))
