"""Which tokens are scored, and with how much context: every protocol is a plan of windows.

A window reads tokens[start:stop] of one document and scores the last `scored` of its stop - start
predictions, so its targets are the tokens at stop - scored + 1 .. stop. What is unusual: a protocol
is only such a list, made from the lengths of the documents before any model exists; one scorer runs
them all, and what a plan promises (which tokens, how often, with how much context, at what cost)
can be read off it. No window leaves its document, an end-of-document token is never a target, and
neither is a document's first token, which nothing precedes.

With `bos` every window begins with the end-of-document token, which in training stands before every
document: it takes the place of the window's first token, so that N inputs stay N inputs and the
targets are the same. `non_overlapping` and `sliding` read documents from their beginning; there it
stands before the first token (start = -1) and takes nobody's place.

In every function `documents` (D,) holds the number of tokens of each document, without its
end-of-document token.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from errors import UserError

Windows = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # document, start, stop, scored


@dataclass(frozen=True, eq=False)
class Plan:
    """Windows in the order of their targets, by document and place; no token is a target twice."""

    protocol: str
    context_length: int
    document: np.ndarray  # (W,) int64, as are the next three
    start: np.ndarray
    stop: np.ndarray
    scored: np.ndarray
    stride: int | None = None
    window: int | None = None  # attention sees only this many keys; dataclasses.replace sets it
    bos: bool = False  # the first input of a window is the end-of-document token
    bins: tuple[tuple[int, int], ...] = ()  # report by tokens of context, first to last inclusive

    @property
    def input_tokens(self) -> int:
        """What running the plan costs, in tokens read."""
        return int((self.stop - self.start).sum())

    @property
    def whole(self) -> bool:
        """Whether all tokens of its documents are scored, but for the first of each."""
        return self.protocol in ("non_overlapping", "sliding")

    def targets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Document, index in it, and inputs up to it of every target, in order: (n,) int64."""
        window = np.repeat(np.arange(len(self.scored)), self.scored)
        last = np.cumsum(self.scored)
        index = self.stop[window] + np.arange(1, len(window) + 1) - last[window]
        return self.document[window], index, index - self.start[window]


@dataclass(frozen=True, eq=False)
class Scores:
    """-log p of every target of a plan, sorted by (document, index): arrays of shape (n,)."""

    nats: np.ndarray  # float32
    document: np.ndarray  # int32
    index: np.ndarray  # int32, place in the document
    bytes: np.ndarray  # int32, length of the token's text in UTF-8

    def __len__(self) -> int:
        return len(self.nats)

    def select(self, where: np.ndarray | slice) -> "Scores":
        parts = (self.nats, self.document, self.index, self.bytes)
        return Scores(*(part[where] for part in parts))


def same_tokens(
    documents: np.ndarray, length: int, *, longest: int, targets: int, block: int
) -> Plan:
    """The same `targets` tokens for every length up to `longest`, evenly spread over the documents.

    They come in blocks of `block` neighbours. Each block ends a window of `length` inputs, so its
    tokens have between length - block + 1 and length tokens of context. Only places that leave room
    for `longest` inputs are taken, which is why the places do not depend on `length`. Raises
    UserError where the documents cannot supply that many targets.
    """
    if not 1 <= block <= length <= longest:
        raise UserError(f"eval.block={block}: must be from 1 to the shortest of lengths ({length})")
    if targets < block or targets % block:
        raise UserError(f"eval.targets={targets}: must be a multiple of eval.block={block}")
    count, slots = targets // block, _slots(documents, longest, block)
    if count > slots.sum():
        raise UserError(_too_few(documents, longest, targets, block))
    # Slots are the places for blocks laid end to end. The middle one of each of `count` equal
    # shares, in whole numbers: evenly spread, and no slot is taken twice.
    taken = (2 * np.arange(count) + 1) * slots.sum() // (2 * count)
    ends = np.cumsum(slots)
    document = np.searchsorted(ends, taken, side="right")
    place = taken - (ends - slots)[document]
    stop = longest + place * block
    scored = np.full(count, block)
    return Plan("same_tokens", length, document, stop - length, stop, scored)


def _slots(documents: np.ndarray, longest: int, block: int) -> np.ndarray:
    """How many blocks fit in each document end to end, the first one after `longest` inputs."""
    return np.maximum(documents - (longest - block + 1), 0) // block


def _too_few(documents: np.ndarray, longest: int, targets: int, block: int) -> str:
    def lacking(length: int) -> bool:
        return bool(_slots(documents, length, block).sum() * block < targets)

    candidates = range(block, max(longest, block) + 1)
    reach = block - 1 + bisect_right(candidates, False, key=lacking)
    most = int(_slots(documents, longest, block).sum()) * block
    fewer = f"set eval.targets={most}" if most else "no document is that long"
    shorter = f"keep lengths at or below {reach}" if reach >= block else "take a larger split"
    return (
        f"eval.targets={targets}: with lengths up to {longest} this split offers {most} targets; "
        f"{fewer}, or {shorter}"
    )


def non_overlapping(documents: np.ndarray, length: int, *, bos: bool = False) -> Plan:
    """Consecutive windows of `length` inputs, the last of a document shorter, all of them scored.

    What most papers print. Tokens early in a window have little context, the fewer the longer the
    window: a longer length looks better for that reason alone (the early token curse: Press et al.
    2022, tables 13 to 15).
    """
    return Plan("non_overlapping", length, *_strided(documents, length, length, bos), bos=bos)


def sliding(documents: np.ndarray, length: int, *, stride: int, bos: bool = False) -> Plan:
    """Windows of `length` inputs that advance by `stride` and score only the new targets.

    Each token but a document's first is scored once, with at least min(index, length - stride + 1)
    tokens of context. Hugging Face's strided perplexity with max_length = length + 1: they count
    the tokens of a window, here its inputs, so that stride = length is exactly `non_overlapping`
    and loses no token between windows. stride = 1 is the naive loop, one window a token.
    """
    if not 1 <= stride <= length:
        raise UserError(f"eval.stride={stride}: must be from 1 to each of lengths ({length})")
    windows = _strided(documents, length, stride, bos)
    return Plan("sliding", length, *windows, stride=stride, bos=bos)


def _strided(documents: np.ndarray, length: int, stride: int, bos: bool) -> Windows:
    """The windows that score each token but a document's first once."""
    targets, reach = np.maximum(documents - 1, 0), length - bos  # of the first window
    windows = np.where(targets > 0, 1 + -(-np.maximum(targets - reach, 0) // stride), 0)
    document = np.repeat(np.arange(len(documents)), windows)
    step = np.arange(len(document)) - (np.cumsum(windows) - windows)[document]
    start = step * stride - bos
    stop = np.minimum(start + length, targets[document])
    scored = stop - np.where(step > 0, start - stride + length, 0)
    some = scored > 0  # a first window of one input, a BOS, could score a first token alone
    return document[some], start[some], stop[some], scored[some]


def per_position(documents: np.ndarray, length: int) -> Plan:
    """As many full windows of `length` inputs as the documents hold, reported by tokens of context.

    The bins double: 1, 2-3, 4-7, ...; the last one ends at `length` and takes it in. A BOS counts as
    a token of context. Raises UserError where no document holds a window.
    """
    windows = np.maximum(documents - 1, 0) // length
    if not windows.sum():
        longest = max(int(documents.max(initial=0)) - 1, 0)
        raise UserError(f"lengths={length}: per_position can reach {longest} tokens in this split")
    document = np.repeat(np.arange(len(documents)), windows)
    start = length * (np.arange(len(document)) - (np.cumsum(windows) - windows)[document])
    lows = [2**k for k in range(max((length - 1).bit_length(), 1))]
    bins = tuple(zip(lows, [low - 1 for low in lows[1:]] + [length], strict=True))
    scored = np.full(len(document), length)
    return Plan("per_position", length, document, start, start + length, scored, bins=bins)


def plan(
    protocol: str,
    documents: np.ndarray,
    length: int,
    *,
    longest: int,
    targets: int,
    block: int,
    stride: int,
    bos: bool,
) -> Plan:
    """The plan of a protocol by its name; each takes of the settings what it needs."""
    table = {
        "same_tokens": lambda: same_tokens(
            documents, length, longest=longest, targets=targets, block=block
        ),
        "non_overlapping": lambda: non_overlapping(documents, length, bos=bos),
        "sliding": lambda: sliding(documents, length, stride=stride, bos=bos),
        "per_position": lambda: per_position(documents, length),
    }
    if protocol not in table:
        raise UserError(f"protocols: {protocol!r} is none of {', '.join(table)}")
    if length < 1:
        raise UserError(f"lengths={length}: a length is at least 1")
    return replace(table[protocol](), bos=bos)


def attention_windows(asked: Sequence[Any], trained_context: int) -> list[int | None]:
    """What `windows` asks for, each once: None is full attention, a number so many tokens."""
    names: dict[Any, int | None] = {"full": None, "trained": trained_context}
    found: dict[int | None, None] = {}
    for width in asked:
        if width not in names and (type(width) is not int or width < 1):
            raise UserError(f"windows: {width} is none of full, trained, or a number from 1")
        found[names.get(width, width)] = None
    return list(found)


def under_windows(plans: Sequence[Plan], windows: Sequence[int | None]) -> list[Plan]:
    """Each plan under each attention window; one that reaches as far as the input adds nothing."""
    pairs = [(plan, w) for plan in plans for w in windows]
    return [replace(p, window=w) for p, w in pairs if w is None or w < p.context_length]
