"""Checks of the score forms: what attention makes of them equals the dense softmax in float64.

Whole, in small chunks of queries, as a pair whatever the form is, and for the last rows alone (as
in decoding); with contiguous positions, a window, and documents with restarted positions; forward
and backward. The scores are those that the scheme gives: other checks say whether they are right.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from evaluation.kit.agreement import documents, relative
from evaluation.kit.reference import natural_positions, visible
from evaluation.kit.subjects import Result, Subject
from model import attention
from model.attention import Places, attend
from model.config import ModelConfig
from model.position.base import Clock, Position

SCALE = 0.3


@dataclass(frozen=True)
class Case:
    position: Position
    clock: Clock | None
    places: Places
    bias: Tensor  # the scheme's scores for every pair: (B or 1, H or 1, T, T) float64
    seen: Tensor  # (B, 1, T, T) bool

    def dense(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        k, v = (x.double().repeat_interleave(groups, 1) for x in (k, v))
        scores = SCALE * q.double() @ k.mT + self.bias
        return scores.masked_fill(~self.seen, -torch.inf).softmax(-1) @ v

    def fast(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, self.position, self.clock, self.places, SCALE)

    def chunked(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with small_blocks():
            return self.fast(q, k, v)

    def paired(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As if the scheme had nothing to offer but a score for each pair of tokens."""
        index = torch.arange(self.places.length)
        position = Table(
            self.position.config, self.bias.float().expand(-1, -1, *self.seen.shape[2:])
        )
        position.window = self.position.window
        places = replace(self.places, q_pos=index, k_pos=index, consecutive=False)
        return attend(q, k, v, position, None, places, SCALE)


class Table(Position):
    form = "pair"

    def __init__(self, config: ModelConfig, table: Tensor):
        super().__init__(config)
        self.table = table  # (B, H, T, T)

    def pair(self, i: Tensor, j: Tensor) -> Tensor:
        return self.table[..., i, j].transpose(0, 1)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Attention in as many chunks of queries as it can be cut into."""
    before, attention.MOST_ROWS = attention.MOST_ROWS, dict.fromkeys(attention.MOST_ROWS, 1)
    try:
        yield
    finally:
        attention.MOST_ROWS = before


def cases(s: Subject) -> Iterator[Case]:
    model, T = s.model(torch.float32), s.length
    index = torch.arange(T)[None].expand(2, T)
    hidden = torch.randn(2, T, model.config.d_model, generator=torch.Generator().manual_seed(4))
    for position in dict.fromkeys(model.positions):
        for segments, window in ((None, None), (None, 9), (documents(index), None)):
            rows = [None, None] if segments is None else list(segments)
            pos = torch.stack([natural_positions(T, row) for row in rows])
            clock = position.clock(hidden, pos) if position.form == "clock" else None
            seen = torch.stack([visible(T, row, [window, position.window]) for row in rows])
            places = Places(pos, pos, segments, window, True)
            yield Case(position, clock, places, scores(position, clock, pos), seen[:, None])


def scores(
    position: Position, clock: Clock | None, pos: Tensor, queries: slice | Tensor = slice(None)
) -> Tensor:
    """(B or 1, H or 1, T, T) float64 for pos (B, T), or some rows of it."""
    i, j = pos[:, queries, None], pos[:, None, :]
    if clock is not None:
        c = clock.c.detach().double()
        slopes = torch.tensor(clock.scale, dtype=torch.float64)[None, :, None, None]
        return slopes * (c[..., queries, None] - c[..., None, :])
    if position.form == "none":
        return torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    by_distance = position.form == "distance"
    given = position.distance((i - j).clamp(min=0)) if by_distance else position.pair(i, j)
    return given.detach().double().transpose(0, 1)


def inputs(s: Subject, dtype: torch.dtype, T: int | None = None) -> list[Tensor]:
    """q, k, v and a weight for each output number, two rows."""
    config, generator = s.config(), torch.Generator().manual_seed(5)
    heads = (config.n_heads, config.n_kv_heads, config.n_kv_heads, config.n_heads)
    shapes = [(2, h, T or s.length, config.d_head) for h in heads]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def with_gradients(
    compute: Callable[[Tensor, Tensor, Tensor], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    y = compute(*leaves)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), leaves)]


def forms(s: Subject, dtype: torch.dtype, bound: float) -> Result:
    errors = []
    for case in cases(s):
        given = inputs(s, dtype)
        want = with_gradients(case.dense, *given)
        for compute in (case.fast, case.chunked, case.paired):
            got = with_gradients(compute, *given)
            errors += [relative(a, b.double()) for a, b in zip(got, want, strict=True)]
    return Result(max(errors), bound)


def last_rows(s: Subject) -> Result:
    """A few queries of all: as in decoding with a cache."""
    errors = []
    for case in cases(s):
        q, k, v, _ = inputs(s, torch.float32)
        want = case.dense(q, k, v)
        for n in (1, 2, 20):
            places = replace(case.places, q_pos=case.places.q_pos[..., -n:])
            tail = replace(case, places=places)
            errors.append(relative(tail.fast(q[:, :, -n:], k, v), want[:, :, -n:]))
    return Result(max(errors), 1e-5)


def whole_blocks(s: Subject) -> Result:
    """Blocks as long as they get: the queries around their ends, and what they must not see."""
    T, errors = 1100, []
    fixed, learning = (make(torch.float32, n_layers=s.shallow) for make in (s.model, s.build))
    positions = dict.fromkeys((*fixed.positions, *learning.positions))  # which take other blocks
    near = torch.tensor([t for end in range(64, T, 64) for t in (end - 1, end)] + [0, T - 1])
    hidden = torch.randn(1, T, s.config().d_model, generator=torch.Generator().manual_seed(4))
    index = torch.arange(T)[None]
    segments = (index >= 430).long()
    for position in positions:
        for row, window in ((None, None), (None, 300), (segments[0], None)):
            pos = natural_positions(T, row)[None]
            clock = position.clock(hidden, pos) if position.form == "clock" else None
            windows = [window, position.window]
            seen = visible(T, row, windows)[near]
            places = Places(pos, pos, None if row is None else row[None], window, True)
            q, k, v, _ = (x[:1] for x in inputs(s, torch.float32, T))
            case = Case(position, clock, places, scores(position, clock, pos, near), seen)
            got = case.fast(q, k, v)[:, :, near]
            errors.append(relative(got, case.dense(q[:, :, near], k, v)))
    return Result(max(errors), 2e-5)


forms_float32 = partial(forms, dtype=torch.float32, bound=2e-5)
forms_bfloat16 = partial(forms, dtype=torch.bfloat16, bound=3e-2)


def far_clock(s: Subject) -> Result:
    """The last queries of 2,048, far into a text, whole and as in decoding; shares of bounds."""
    model, T, n, shares = s.model(torch.float32), 2048, 64, []
    generator = torch.Generator().manual_seed(4)
    hidden = torch.randn(1, T, model.config.d_model, generator=generator)
    pos, last = torch.arange(65_536, 65_536 + T), torch.full((1, 1, 1), -45_000.0).double()
    places = Places(pos, pos, None, None, True)
    late = slice(T - n, T)
    for position in filter(lambda p: p.form == "clock", dict.fromkeys(model.positions)):
        clock = position.clock(hidden, pos, last)
        seen = visible(T, None, [position.window])[late]
        for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 3e-2)):
            q, k, v, _ = (x[:1] for x in inputs(s, dtype, T))
            bias = scores(position, clock, pos[None], late)
            want = Case(position, clock, places, bias, seen).dense(q[:, :, late], k, v)
            whole = attend(q, k, v, position, clock, places, SCALE)[:, :, late]
            part = replace(places, q_pos=pos[late])
            tail = attend(q[:, :, late], k, v, position, clock, part, SCALE)
            shares += [relative(y, want) / bound for y in (whole, tail)]
    return Result(max(shares), 1.0)
