"""Where a position scheme may speak. The base class says nothing: it is NoPE, no positions at all.

A scheme overrides what it needs. `embed` and `rotate` change vectors; a score form adds to the
attention scores, after the softmax scale and never multiplied by it. There are three score forms,
from cheap to general, and a scheme names its own in `form`; attention picks the fastest exact
computation for the form and never learns which scheme runs.

Causality, windows and document borders are no business of a scheme: they follow from the index in
the sequence. `pos` is data (any integers, also clamped, random or restarted) and informs the scheme
alone.

B batch, T tokens (Tq queries, Tk keys), C model width, H heads, Hkv key/value heads, D head width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from model.config import ModelConfig


@dataclass(frozen=True)
class Clock:
    """A score of scale[h] · (c_i - c_j) between query i and key j.

    scale: one constant a head. c: (B or 1, H or 1, T) float32 or better, a running value per token.
    """

    scale: tuple[float, ...]
    c: Tensor

    def part(self, low: int, high: int) -> "Clock":
        """The readings of tokens [low, high)."""
        return Clock(self.scale, self.c[..., low:high])


class Position(nn.Module):
    form: Literal["none", "clock", "distance", "pair"] = "none"
    max_length: int | None = None  # the longest sequence the scheme is defined for; None: any
    by_context: tuple[str, ...] = ()  # settings whose null goes by the trained context
    window: int | None = None  # this layer sees the last `window` keys only; None: all of them
    span: int | None = None  # `rotate` takes no more queries at once; None: any number
    per_layer = False  # layers have weights of their own here: one object each
    family: str | None = None  # weights trained under one of a family may be read by the others

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config

    @classmethod
    def build(cls, config: ModelConfig, **settings: Any) -> "list[Position]":
        """One entry a layer: one object that all of them share, or one each (`per_layer`)."""
        if cls.per_layer:
            return [cls(config, **settings) for _ in range(config.n_layers)]
        return [cls(config, **settings)] * config.n_layers

    def reset(self, generator: torch.Generator) -> None:
        """Initialise the scheme's own parameters, if any, from `generator` alone."""

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Token embeddings (B, T, C) at `pos` (T,) or (B, T); called once, before the first layer."""
        return x

    def rotate(
        self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, length: int | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Queries (B, H, Tq, D) and keys (B, Hkv, Tk, D), turned by their positions.

        Called when attention is taken, with all keys so far. length: the tokens so far; (B, Tk) of
        each key's own document where there are several. A scheme that looks at it says so in
        `varies_at`; no other is sure to get the documents' lengths.
        """
        return q, k

    def varies_at(self, length: int) -> bool:
        """Whether `rotate` turns the tokens of so long a text by its length.

        Where one of the layers before the last does, decoding token by token does not equal one pass
        over the text: what a cache keeps of a token was made when the text was shorter.
        """
        return False

    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        """form "clock": from the layer's normed input x (B, T, C) and its positions.

        last: the reading (B or 1, H or 1, 1) of the token before x, None at the start: a running
        sum goes on from it.
        """
        raise TypeError(f"{type(self).__name__} has no clock")

    def distance(self, d: Tensor) -> Tensor:
        """form "distance": scores (H, *d.shape), float32 or better, for distances d = i - j >= 0."""
        raise TypeError(f"{type(self).__name__} has no distance")

    def pair(self, i: Tensor, j: Tensor) -> Tensor:
        """form "pair", and "distance" at free positions: scores (H, ..., Tq, Tk), float32 or better.

        i (..., Tq, 1) and j (..., 1, Tk) are positions of queries and keys.
        Pairs that attention will mask (j after i in the sequence) may hold any finite number.
        """
        return self.distance((i - j).clamp(min=0))


def constant(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """(n,) numbers on a device, without waiting for it, as torch.tensor(..., device=device) does."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def wide(x: Tensor) -> Tensor:
    """x in the precision that schemes compute in: float32, or float64 where x has it."""
    return x if x.dtype == torch.float64 else x.float()
