"""Causal attention for every score form, each the fastest exact way we know, without T x T masks.

Plain causal attention goes to the fused kernel as it is. A clock is folded into a few extra query
and key channels, so that the same kernel computes it. A distance is a Toeplitz matrix: one row of
numbers, seen through strides. Only a pair needs a dense block, for some queries at a time. What may
be seen (causality, windows, documents) follows from the index in the sequence and never from
positions; a scheme is asked for its score form and nothing else.

B batch, Tq queries, Tk keys (the queries are the last Tq of them), H heads, Hkv key/value heads,
D head width.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.fold import fold
from model.position.base import Clock, Position

# How many queries a block may hold: near queries fold more exactly; a block that is no view of a
# line of numbers takes memory, the more so where a pair's score is computed.
MOST_ROWS = {"none": 1024, "clock": 256, "distance": 1024, "pair": 256}
PLAIN_ROWS = 256  # of scores that learn: PyTorch's plain formula computes what is masked, too
MOST_ELEMENTS = {"none": 2**24, "clock": 2**24, "distance": 2**24, "pair": 2**21}
FEWEST_ROWS = 16
MOST_KEPT = (
    2**25
)  # scores of pairs, 128 MiB in float32: up to here layers that share them compute them once


@dataclass(frozen=True)
class Places:
    """Where everybody stands: the same for all layers of a call."""

    q_pos: Tensor  # (Tq,) or (B, Tq)
    k_pos: Tensor  # (Tk,) or (B, Tk); the same object as q_pos where all tokens are new
    segments: Tensor | None  # (B, Tk) document numbers; a token sees its own document alone
    window: int | None  # a token sees the last `window` tokens, itself among them
    consecutive: bool  # inside a document positions count up by one: distances are of indices
    pairs: dict[Any, Tensor] = field(default_factory=dict)  # scores that an earlier layer computed

    @property
    def length(self) -> int:
        return self.k_pos.shape[-1]

    def seen(self, window: int | None) -> Tensor:
        """(Tq,) or (B, Tq) float32: how many keys each query may see."""
        index = torch.arange(self.length, device=self.k_pos.device)
        index = index if self.segments is None else restarted(index, self.segments)
        seen = index[..., -self.q_pos.shape[-1] :] + 1
        return (seen if window is None else seen.clamp(max=window)).float()

    def lengths(self) -> Tensor:
        """(B, Tk) int64: how many tokens the document of each key has."""
        assert self.segments is not None
        document = numbered(self.segments)
        tokens = torch.zeros_like(document).scatter_add(1, document, torch.ones_like(document))
        return tokens.gather(1, document)

    def centred(self) -> "Places":
        """Positions counted from the middle of each document's own queries."""
        assert self.segments is not None
        document, ends = numbered(self.segments), []
        own = document[:, -self.q_pos.shape[-1] :]
        q_pos = self.q_pos.expand_as(own)
        for which in ("amin", "amax"):  # of a document without a query: 0, no key of it is seen
            none = torch.zeros_like(document)
            ends.append(none.scatter_reduce(1, own, q_pos, which, include_self=False))
        middle = (ends[0] + ends[1]) // 2
        k_pos = self.k_pos - middle.gather(1, document)
        return replace(self, q_pos=q_pos - middle.gather(1, own), k_pos=k_pos)

    def of_last(self, queries: int | None) -> "Places":
        """For the last queries alone, None for all, and all keys."""
        n = self.q_pos.shape[-1]
        return self if queries is None else self.part(n - queries, n)

    def tail(self, x: Tensor) -> Tensor:
        """The queries' part of x (B, T, C), of new tokens."""
        return x[:, x.shape[1] - self.q_pos.shape[-1] :]

    def part(self, a: int, b: int) -> "Places":
        """For queries [a, b) and the keys up to the last of them."""
        if (a, b) == (0, self.q_pos.shape[-1]):
            return self
        end = self.length - self.q_pos.shape[-1] + b
        segments = None if self.segments is None else self.segments[:, :end]
        q_pos, k_pos = self.q_pos[..., a:b], self.k_pos[..., :end]
        return Places(q_pos, k_pos, segments, self.window, self.consecutive)


def begins(segments: Tensor) -> Tensor:
    """(B, T) bool: a document's first token, for document numbers (B, T)."""
    new = torch.ones_like(segments, dtype=torch.bool)
    new[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return new


def restarted(index: Tensor, segments: Tensor) -> Tensor:
    """Positions (B, T) that count from 0 in each document; index (T,), segments (B, T)."""
    return index - torch.where(begins(segments), index, 0).cummax(dim=-1).values


def numbered(segments: Tensor) -> Tensor:
    """(B, T) int64: 0 for a row's first document, then 1, 2, ..."""
    return begins(segments).cumsum(dim=-1) - 1


def turn_and_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Position,
    clock: Clock | None,
    places: Places,
    scale: float,
) -> Tensor:
    """`attend` after the scheme turned queries and keys, with as many queries as it takes at once."""
    Tq, Tk = q.shape[2], k.shape[2]
    span, y = position.span or Tq, []
    apart = places.segments is not None  # what a scheme is told is a document's own
    length = places.lengths() if apart and position.varies_at(Tk) else places.length
    for a in reversed(range(0, Tq, span)):
        b = min(a + span, Tq)
        end = Tk - Tq + b
        part = places.part(a, b)
        near = part.centred() if apart and position.span else part
        so_far = length[:, :end] if isinstance(length, Tensor) else length
        turned = position.rotate(q[:, :, a:b], k[:, :, :end], near.q_pos, near.k_pos, so_far)
        reading = None if clock is None else clock.part(0, end)
        y.append(attend(*turned, v[:, :, :end], position, reading, part, scale))
    return torch.cat(y[::-1], dim=2)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Position,
    clock: Clock | None,
    places: Places,
    scale: float,
) -> Tensor:
    """softmax(scale · q·k + the scheme's scores) v over what each query may see, in q's dtype.

    q (B, H, Tq, D), k and v (B, Hkv, Tk, D), turned already; clock: c for all Tk tokens, or None.
    """
    Tq, Tk, D = q.shape[2], k.shape[2], q.shape[3]
    dtype, window = q.dtype, smallest(position.window, places.window)

    def folded(a: int, b: int, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
        part = q[:, :, a:b], k[:, :, low:high], v[:, :, low:high]
        return part if clock is None else fold(*part, clock.part(low, high), scale)

    unmasked = Tq == 1 and (window is None or window >= Tk)
    plain = position.form in ("none", "clock") and places.segments is None
    if plain and (unmasked or (Tq == Tk and (window is None or window >= Tk))):
        return sdpa(*folded(0, Tq, 0, Tk), None, scale, causal=not unmasked)[..., :D].to(dtype)
    blocks = []
    for a, b, low, high, mask in dense_blocks(position, places, window, Tq, q):
        qb, kb, vb = folded(a, b, low, high)
        blocks.append(sdpa(qb.flip(2), kb, vb, mask().to(qb.dtype), scale).flip(2))
    return torch.cat(blocks[::-1], dim=2)[..., :D].to(dtype)


def smallest(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:  # torch.compile cannot read min(..., default=None)
        return b if a is None else a
    return min(a, b)


def sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool = False
) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    if grouped and q.is_cuda and (mask is not None or q.dtype == torch.float32):
        # on a GPU only the kernel for half precision without a mask shares keys: T x T scores otherwise
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        grouped = False
    with torch.autocast(q.device.type, enabled=False):  # it would round a float32 fold or mask
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )


def dense_blocks(
    position: Position, places: Places, window: int | None, Tq: int, q: Tensor
) -> Iterator[tuple[int, int, int, int, Callable[[], Tensor]]]:
    """Queries [a, b), the last first, the keys [low, high) that they may see, their mask with its rows reversed.

    So row r and key j of a Toeplitz block lie at r + j in one line of numbers: both strides +1.
    """
    Tk, H = places.length, q.shape[1]
    strided = position.form != "pair" and (position.form != "distance" or places.consecutive)
    table = by_distance(position if strided else None, torch.arange(Tk, device=q.device), window)
    if not table.requires_grad:  # a gradient is a sum over many: in float32
        table = table.to(q.dtype)  # here: of a block's view it would be a copy
    batch = 1 if places.segments is None and places.q_pos.dim() == 1 else q.shape[0]
    keep = batch * H * Tq * Tk <= MOST_KEPT and not position.per_layer
    form = position.form if strided else "pair"
    rows = MOST_ROWS[form]
    if table.requires_grad:
        rows = min(rows, PLAIN_ROWS)
    if (
        not strided or places.segments is not None or q.dtype == torch.bfloat16
    ):  # no view, or copied
        rows = min(rows, MOST_ELEMENTS[form] // (batch * H * Tk))
    if window is not None:
        rows = min(rows, max(64, window))  # a block's corners outside the window are wasted work
    rows = max(FEWEST_ROWS, rows)
    for a in reversed(range(0, Tq, rows)):  # the longest first: what it leaves, the others fit into
        b = min(a + rows, Tq)
        high = Tk - Tq + b
        low = 0 if window is None else max(0, Tk - Tq + a - window + 1)

        # A function: made when the block before it is forgotten, so that one is held at a time.
        def mask(a: int = a, b: int = b, low: int = low, high: int = high) -> Tensor:
            block = toeplitz(table[:, : high - low], b - a)
            if not strided:
                block = block + pairs(position, places, a, b, low, high, keep)
            if places.segments is not None:
                i = places.segments[:, None, high - (b - a) : high].flip(-1).unsqueeze(-1)
                block = block.masked_fill(i != places.segments[:, None, None, low:high], -torch.inf)
            # four dimensions: with three PyTorch leaves the fused kernel without a word
            return block.to(q.dtype).view(-1, *block.shape[-3:])

        yield a, b, low, high, mask


def pairs(
    position: Position, places: Places, a: int, b: int, low: int, high: int, keep: bool
) -> Tensor:
    """(B or none, H, b - a, high - low) scores of a block, its rows reversed; keep: for the layers to come."""
    key = (position, a, b, low, high)
    if key in places.pairs:
        return places.pairs[key]
    i = places.q_pos[..., a:b].flip(-1).unsqueeze(-1)
    found = position.pair(i, places.k_pos[..., None, low:high]).movedim(0, -3)
    if keep:
        places.pairs[key] = found
    return found


def by_distance(position: Position | None, d: Tensor, window: int | None) -> Tensor:
    """(H or 1, Tk) what distances d alone say: the scheme's scores if it has such, -inf too far."""
    table = torch.zeros(1, len(d), device=d.device)
    if position is not None and position.form == "distance":
        table = position.distance(d)
    return table if window is None else table.masked_fill(d >= window, -torch.inf)


def toeplitz(table: Tensor, rows: int) -> Tensor:
    """(H, n) scores by distance -> (H, rows, n): row r is the r-th last query, its own key last.

    -inf after that key. A view: no number is stored n times.
    """
    future = table.new_full((table.shape[0], rows - 1), -torch.inf)
    return torch.cat((table.flip(-1), future), dim=-1).unfold(-1, table.shape[1], 1)
