"""The measurement against those of others: the windows of EleutherAI's lm-evaluation-harness, its count of words, and
the strided loop of Hugging Face's documentation with transformers' own Llama.

The models are real ones with stirred weights, so that every token of context changes a score. Token ids 0 to V - 1
are text, V ends a document.
"""

import re
import runpy
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from evaluation import protocols
from evaluation.kit.oracles import llama
from evaluation.kit.subjects import by_name
from evaluation.protocols import Plan, Scores
from evaluation.scoring import document_lengths, score
from tests.evaluation.test_scoring import FakeSplit

V = 60  # the tiny models have 61 tokens
SIZES = (50, 2, 13, 34, 12, 1)  # 34 = 12 + 3 * 7 + 1: strides of 7 end there exactly


@pytest.fixture(scope="module")
def model():
    return by_name("rope").model(torch.float32)


@pytest.fixture(scope="module")
def split() -> FakeSplit:
    rng = np.random.default_rng(0)
    tokens = np.concatenate([np.append(rng.integers(V, size=size), V) for size in SIZES])
    offsets = np.cumsum([0, *(size + 1 for size in SIZES)])
    return FakeSplit(tokens.astype(np.uint16), offsets, np.ones(V + 1, np.int64))


def run(model, split: FakeSplit, plan: Plan) -> Scores:
    return score(model, split, plan, tokens_per_batch=40, device="cpu")


def text(split: FakeSplit, document: int) -> list[int]:
    return split.tokens[split.offsets[document] : split.offsets[document + 1] - 1].tolist()


def harness_windows(tokens: list[int], prefix: int, length: int, context: int):
    """(inputs, predicted) as its models get them: what it calls context may not overlap what it scores."""
    rolling = get_rolling_token_windows(tokens, prefix, length, context)
    return [(a + b[:-1], b) for a, b in map(make_disjoint_window, rolling)]


def harness_plan(length: int, context: int) -> Plan:
    """Its windows over the places of each document, whose first token is the prefix of the rest."""
    found = [
        (number, inputs[0], inputs[-1] + 1, len(predicted))
        for number, size in enumerate(SIZES)
        for inputs, predicted in harness_windows(list(range(1, size)), 0, length, context)
    ]
    columns = (np.array(column) for column in zip(*found, strict=True))
    return Plan("harness", length, *columns)


@torch.no_grad()
def harness_nats(model, split: FakeSplit, length: int, context: int) -> np.ndarray:
    """What the harness sums: its windows of tokens, one after the other, whole logits."""
    found = []
    for document in range(len(SIZES)):
        first, *rest = text(split, document)
        for inputs, predicted in harness_windows(rest, first, length, context):
            logits = model(torch.tensor([inputs]))[0, -len(predicted) :].log_softmax(-1)
            found.append(-logits[torch.arange(len(predicted)), torch.tensor(predicted)].numpy())
    return np.concatenate(found)


@pytest.mark.parametrize(("length", "context"), [(12, 1), (12, 6), (12, 12), (7, 3), (1, 1)])
def test_the_harness_windows_score_here_what_they_score_there(model, split, length, context):
    plan = harness_plan(length, context)
    ours = run(model, split, plan)
    theirs = harness_nats(model, split, length, context)
    assert len(theirs) == sum(size - 1 for size in SIZES)
    np.testing.assert_allclose(ours.nats, theirs, atol=1e-5)


@pytest.mark.parametrize(("length", "context"), [(12, 1), (12, 6), (12, 12), (7, 3), (1, 1)])
def test_sliding_is_the_harness_but_for_the_last_window(model, split, length, context):
    """The last window of a document is moved back there until it is full: it has more context, never less."""
    stride = length - context + 1
    plan = protocols.sliding(document_lengths(split), length, stride=stride)
    if stride == length:
        one = protocols.non_overlapping(document_lengths(split), length)
        np.testing.assert_array_equal(run(model, split, one).nats, run(model, split, plan).nats)
    theirs = harness_nats(model, split, length, context)
    document, index, reach = plan.targets()
    _, _, more = harness_plan(length, context).targets()
    assert (more >= reach).all()
    same = more == reach
    for number, size in enumerate(SIZES):
        if size - 1 <= length or (size - 1 - length) % stride == 0:
            assert same[document == number].all()
        assert same[(document == number) & (index <= length)].all()
    np.testing.assert_allclose(run(model, split, plan).nats[same], theirs[same], atol=1e-5)


def test_bos_is_the_harness_prefix_where_a_document_fits_one_window(model, split):
    plan = protocols.non_overlapping(document_lengths(split), 50, bos=True)
    ours = run(model, split, plan)
    for number in range(len(SIZES)):
        ((inputs, predicted),) = harness_windows(text(split, number), V, 50, 1)
        with torch.no_grad():
            nats = model(torch.tensor([inputs]), torch.tensor([predicted]))[0].numpy()
        # it scores a document's first token too
        np.testing.assert_allclose(ours.nats[ours.document == number], nats[1:], atol=1e-5)


def test_words_are_the_harness_words():
    """It splits at blanks, so that a page which begins or ends with one has an empty word more there."""
    spec = find_spec("lm_eval")
    assert spec and spec.origin
    path = Path(spec.origin).parent / "tasks/wikitext/preprocess_wikitext.py"
    harness = runpy.run_path(str(path))["process_results"]
    page = " = Robert <unk> = \n\n It sold 1 @,@ 000 ,\t\n  and more . \n"
    _, words = harness({"page": page}, (-1.0,))["word_perplexity"]
    assert words == len(page.split()) + 2 == len(re.findall(r"\S+", page)) + 2
    _, words = harness({"page": page.strip()}, (-1.0,))["word_perplexity"]
    assert words == len(page.split())


def strided_loop(model, tokens: list[int], max_length: int, stride: int) -> np.ndarray:
    """transformers/docs/source/en/perplexity.md, keeping each token's loss instead of their sum."""
    input_ids, found = torch.tensor([tokens]), []
    seq_len, prev_end_loc = len(tokens), 0
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        trg_len = end_loc - prev_end_loc  # may be different from stride on last loop
        ids = input_ids[:, begin_loc:end_loc]
        target_ids = ids.clone()
        target_ids[:, :-trg_len] = -100
        with torch.no_grad():
            outputs = model(ids, labels=target_ids)
        labels = target_ids[0, 1:]
        nats = F.cross_entropy(outputs.logits[0, :-1].float(), labels, reduction="none")
        nats = nats[labels != -100]
        torch.testing.assert_close(nats.mean(), outputs.loss.float(), atol=1e-5, rtol=0)
        found.append(nats.numpy())
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    return np.concatenate(found)


@pytest.mark.parametrize(("max_length", "stride"), [(13, 7), (13, 12), (9, 1), (60, 20)])
def test_sliding_is_the_loop_of_hugging_face_with_their_llama(model, split, max_length, stride):
    """They count the tokens of a window, here its inputs: one less."""
    theirs = llama(model, {"rope_type": "default"})
    plan = protocols.sliding(document_lengths(split), max_length - 1, stride=stride)
    ours = run(model, split, plan)
    for number, size in enumerate(SIZES):
        mine = ours.nats[ours.document == number]
        if size == 1:  # nothing to predict: their loss is not a number
            assert len(mine) == 0
            continue
        nats = strided_loop(theirs, text(split, number), max_length, stride)
        assert len(nats) == len(mine) == size - 1
        np.testing.assert_allclose(mine, nats, atol=1e-4)


def test_their_windows_with_less_context_are_told_apart(model, split):
    """The comparisons above can fail: a window that is one token short is a difference of more than 1e-4."""
    plan = protocols.sliding(document_lengths(split), 12, stride=7)
    shorter = replace(plan, start=np.minimum(plan.start + 1, plan.stop - plan.scored))
    nats = partial(run, model, split)
    assert np.abs(nats(plan).nats - nats(shorter).nats).max() > 1e-2
