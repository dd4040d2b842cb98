"""The loader: each step's batch depends on the seed and the step alone, and an epoch trains each window once."""

from inspect import signature
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from data.loader import IGNORED, Ahead, Batch, Loader, batch_hash
from data.prepare import TokenSplit
from errors import UserError


def stream(lengths: list[int]) -> TokenSplit:
    """Documents of these lengths (EOS included); each token is its own index, so that windows show where they lie."""
    offsets = np.cumsum([0, *lengths])
    tokens = np.arange(offsets[-1], dtype=np.uint16)
    names = [str(d) for d in range(len(lengths))]
    return TokenSplit(tokens, offsets, names, np.ones(len(tokens), np.int64), "", 0)


def loader(split: TokenSplit, **changes: Any) -> Loader:
    settings: dict[str, Any] = {
        "context_length": 8,
        "batch_size": 4,
        "seed": 1,
        "document_mask": False,
    }
    return Loader(split, **{**settings, **changes})


@given(
    n=st.integers(9, 300),
    length=st.integers(1, 8),
    batch=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_an_epoch_takes_each_window_once(n: int, length: int, batch: int, seed: int) -> None:
    windows, epochs = n // length, 3
    load = loader(stream([n]), context_length=length, batch_size=batch, seed=seed)
    steps = -(-windows * epochs // batch)
    rows = torch.cat([load.batch(step).tokens for step in range(steps)])[: windows * epochs]
    assert torch.equal(rows, (rows[:, :1] + torch.arange(length + 1)) % n)  # consecutive, in a ring
    for epoch in rows.view(epochs, windows, length + 1):
        inputs, targets = epoch[:, :-1].flatten(), epoch[:, 1:].flatten()
        assert len(inputs.unique()) == len(targets.unique()) == windows * length  # none twice


def test_epochs_differ_in_order_and_in_where_windows_start() -> None:
    load = loader(stream([1000]), context_length=10, batch_size=100)
    first, second = (load.batch(epoch).tokens[:, 0] for epoch in (0, 1))
    assert first[0] % 10 != second[0] % 10
    assert not torch.equal(first.argsort(), second.argsort())
    assert not torch.equal(first, first.sort().values)


@given(steps=st.lists(st.integers(0, 60), max_size=8), step=st.integers(0, 60))
def test_a_batch_does_not_depend_on_what_was_drawn_before(steps: list[int], step: int) -> None:
    split = stream([50, 70, 11])
    fresh, used = loader(split), loader(split)
    for other in steps:
        used.batch(other)
    assert batch_hash(used.batch(step)) == batch_hash(fresh.batch(step))


def test_seeds_and_steps_give_other_batches() -> None:
    split = stream([2000])
    hashes = {batch_hash(loader(split, seed=s).batch(n)) for s in range(5) for n in range(20)}
    assert len(hashes) == 100


@given(step=st.integers(0, 1000), mask=st.booleans(), world=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_ranks_rows_are_the_one_process_batch(step: int, mask: bool, world: int) -> None:
    settings: dict[str, Any] = {"batch_size": 12, "document_mask": mask}
    split = stream([50, 70, 11])
    whole = loader(split, **settings).batch(step)
    parts = [loader(split, **settings, rank=r, world=world).batch(step) for r in range(world)]
    for name in ("tokens", "segments"):
        if getattr(whole, name) is None:
            assert not mask and name != "tokens"
        else:
            rows = torch.cat([getattr(part, name) for part in parts])
            assert torch.equal(rows, getattr(whole, name))


def test_types() -> None:
    plain = loader(stream([100])).batch(0)
    assert plain.tokens.shape == (4, 9) and plain.tokens.dtype == torch.int64
    assert plain.segments is None
    masked = loader(stream([100]), document_mask=True).batch(0)
    assert torch.equal(masked.tokens, plain.tokens)
    assert masked.segments is not None
    assert masked.segments.shape == (4, 9) and masked.segments.dtype == torch.int64
    assert masked.documents is not None
    for batch in (plain, masked):
        assert batch.inputs.shape == batch.targets.shape == masked.documents.shape == (4, 8)
    assert signature(F.cross_entropy).parameters["ignore_index"].default == IGNORED


@given(
    lengths=st.lists(st.integers(2, 12), min_size=1, max_size=20).filter(lambda x: sum(x) > 7),
    step=st.integers(0, 20),
)
def test_segments_follow_the_documents(lengths: list[int], step: int) -> None:
    split = stream(lengths)
    batch = loader(split, document_mask=True, context_length=7).batch(step)
    assert batch.segments is not None
    owner = [d for d, length in enumerate(lengths) for _ in range(length)]
    rows = zip(*(x.tolist() for x in (batch.tokens, batch.segments, batch.targets)), strict=True)
    for row, segments, targets in rows:
        segment = 0
        for i, token in enumerate(row):
            starts_document = token in split.offsets
            segment += bool(i and starts_document)
            assert segments[i] == segment
            assert not i or starts_document or owner[token] == owner[row[i - 1]]
            if i:  # nothing in a document tells its first token
                assert targets[i - 1] == (IGNORED if starts_document else token)


def test_hash_sees_every_part() -> None:
    batch = loader(stream([50, 30]), document_mask=True).batch(0)
    assert batch.segments is not None
    before = batch_hash(batch)
    for part in (batch.tokens, batch.segments):
        part[0, 0] += 1
        assert batch_hash(batch) != before
        part[0, 0] -= 1
    assert batch_hash(batch) == before


def test_what_does_not_fit_is_named() -> None:
    assert loader(stream([9])).batch(5).tokens.shape == (4, 9)
    with pytest.raises(UserError, match=r"context_length=8 needs 9 tokens and the text has 8"):
        loader(stream([8]))
    with pytest.raises(UserError, match="context_length of at least 2, not 1"):
        loader(stream([90]), context_length=1, document_mask=True)
    with pytest.raises(UserError, match=r"train\.batch_size=4"):
        loader(stream([90]), world=3)


@given(steps=st.lists(st.integers(0, 60), max_size=8))
def test_reading_ahead_changes_nothing(steps: list[int]) -> None:
    load = loader(stream([40, 17, 64]), document_mask=True)
    with Ahead(load, pinned=False) as ahead:
        for step in [*steps, *range(5)]:
            assert batch_hash(ahead.batch(step)) == batch_hash(load.batch(step))


def test_reading_ahead_reads_the_next_step_while_this_one_is_used() -> None:
    asked, load = Queue[int](), loader(stream([1000]))
    read = load.batch
    load.batch = lambda step: asked.put(step) or read(step)  # type: ignore[method-assign]
    with Ahead(load, pinned=False) as ahead:
        ahead.batch(3)
        assert [asked.get(timeout=10), asked.get(timeout=10)] == [3, 4]
        ahead.batch(4)
        assert asked.get(timeout=10) == 5  # and 4 not again


def test_what_goes_wrong_while_reading_ahead_is_raised_when_it_is_wanted() -> None:
    def broken(step: int) -> Batch:
        if step == 1:
            raise OSError("no disk")
        return Batch(torch.zeros(1, 2), None)

    load = loader(stream([1000]))
    load.batch = broken  # type: ignore[method-assign]
    with Ahead(load, pinned=False) as ahead:
        ahead.batch(0)
        with pytest.raises(OSError, match="no disk"):
            ahead.batch(1)
