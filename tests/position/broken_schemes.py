"""Schemes with one mistake each, as people have really made them (broken.py says what catches them).

A subclass keeps its scheme's settings, so nothing here has a constructor of its own.
"""

from typing import Any

import torch
from torch import Tensor

from model.position.alibi import ALiBi
from model.position.base import Clock, Position
from model.position.fire import FIRE
from model.position.fox import FoX
from model.position.kerple import KerpleLog, KerplePower
from model.position.learned import Learned
from model.position.rope import Interleaved, RoPE
from model.position.rope_scaled import DynamicRoPE, LinearRoPE
from model.position.rope_yarn import YaRN
from model.position.sinusoidal import Sinusoidal
from model.position.t5 import T5
from model.position.xpos import XPos

# Rotary -----------------------------------------------------------------------------------------


class WrongPairs(RoPE):
    """Says split_half and turns neighbours."""

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        self.layout = Interleaved()
        return super().turn(x, cos, sin)


class NeverTurned(RoPE):
    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, length: int):
        return q, k


class QueriesTwice(RoPE):
    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, length: int):
        return super().rotate(q, k, 2 * q_pos, k_pos, length)


class LowAngles(RoPE):
    def waves(self, pos: Tensor, frequencies: Tensor):
        return super().waves(pos.bfloat16(), frequencies.bfloat16())


class AutocastAngles(RoPE):
    """Fine by itself; autocast computes a matrix product in bfloat16."""

    def waves(self, pos: Tensor, frequencies: Tensor):
        angles = pos.float()[..., None] @ frequencies.float()[None]
        return angles.double().cos(), angles.double().sin()


class Widening(RoPE):
    """Leaves what it turned in float32."""

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return super().turn(x.float(), cos, sin)


class TableInMemory(RoPE):
    """Computed once, at construction, in a buffer that is not saved."""

    table: Tensor

    @classmethod
    def build(cls, config: Any, **settings: Any) -> list[Position]:
        made = super().build(config, **settings)
        for position in made:
            width = position.config.d_head
            table = 10_000 ** (-2 * torch.arange(width // 2) / width)
            position.register_buffer("table", table, persistent=False)
        return made

    def frequencies(self, length: int, device: torch.device) -> Tensor:
        return self.table


class Branching(RoPE):
    """Looks at numbers to decide what to do."""

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, length: int):
        if q_pos.max() > 10**6:
            q = q * 1
        return super().rotate(q, k, q_pos, k_pos, length)


class FactorTwice(LinearRoPE):
    def scaled(self, frequencies: Tensor, length: int) -> Tensor:
        return super().scaled(frequencies, length) / self.factor


class InvertedRamp(YaRN):
    """LitGPT's."""

    def kept(self, frequencies: Tensor) -> Tensor:
        return 1 - super().kept(frequencies)


class Hot(YaRN):
    def waves(self, pos: Tensor, frequencies: Tensor):
        return tuple(wave * self.amplitude for wave in super().waves(pos, frequencies))


class NeverGrows(DynamicRoPE):
    def scaled(self, frequencies: Tensor, length: int) -> Tensor:
        return super().scaled(frequencies, self.original_context)


class RemembersLongest(DynamicRoPE):
    longest = 0

    def scaled(self, frequencies: Tensor, length: int) -> Tensor:
        self.longest = max(self.longest, length)
        return super().scaled(frequencies, self.longest)


class SaysItIsSteady(DynamicRoPE):
    def varies_at(self, length: int) -> bool:
        return False


class SaysItVaries(RoPE):
    def varies_at(self, length: int) -> bool:
        return length > 33


class Blooming(XPos):
    """Grows with distance."""

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, length: int):
        self.scale_base = -abs(self.scale_base)
        return super().rotate(q, k, q_pos, k_pos, length)


# Added to embeddings ----------------------------------------------------------------------------


class SinesFirst(Sinusoidal):
    def waves(self, pos: Tensor) -> Tensor:
        return super().waves(pos).unflatten(-1, (-1, 2)).mT.flatten(-2)


class SilentClamp(Learned):
    """Takes any length and says nothing."""

    @classmethod
    def build(cls, config: Any, **settings: Any) -> list[Position]:
        made = super().build(config, **settings)
        for position in made:
            position.max_length = None
        return made

    def vectors(self, pos: Tensor) -> Tensor:
        return super().vectors(pos.clamp(max=len(self.table) - 1))


class Crashing(Learned):
    """Leaves it to the table."""

    @classmethod
    def build(cls, config: Any, **settings: Any) -> list[Position]:
        made = super().build(config, **settings)
        cls.max_length = property(lambda self: 10**6, lambda self, value: None)  # type: ignore
        return made


# Scores -----------------------------------------------------------------------------------------


class ScaledBias(ALiBi):
    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        clock = super().clock(x, pos, last)
        return Clock(tuple(s * self.config.d_head**-0.5 for s in clock.scale), clock.c)


class FlippedSign(ALiBi):
    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        return super().clock(x, -pos, last)


class TwoSidedBuckets(T5):
    """Half of the buckets wait for keys after the query."""

    def distance(self, d: Tensor) -> Tensor:
        n = self.table.shape[1] // 2
        large = n // 2 + (d.clamp(min=1) / (n // 2)).log() / 2.7725887 * (n - n // 2)
        bucket = torch.where(d < n // 2, d, large.long().clamp(max=n - 1))
        return self.table[:, bucket]


class Untrained(T5):
    def distance(self, d: Tensor) -> Tensor:
        return super().distance(d).detach()


class LowBias(KerpleLog):
    def distance(self, d: Tensor) -> Tensor:
        return super().distance(d).bfloat16().float()


class GateTooEarly(FoX):
    """The gates from the key on, instead of those after it."""

    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        clock = super().clock(x, pos, last)
        first = clock.c[..., :1]
        before = torch.zeros_like(first) if last is None else last.expand_as(first)
        return Clock(clock.scale, torch.cat((before, clock.c[..., :-1]), dim=-1))


class StartsAnew(FoX):
    """The running sum forgets what came before the chunk."""

    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        return super().clock(x, pos, None)


class BatchMean(FoX):
    def clock(self, x: Tensor, pos: Tensor, last: Tensor | None = None) -> Clock:
        return super().clock(x - 0.5 * x.mean(dim=0), pos, last)


class Straight(KerplePower):
    """r2 is learned by nobody."""

    def distance(self, d: Tensor) -> Tensor:
        return -torch.nn.functional.softplus(self.raw_r1).view(-1, *(1 for _ in d.shape)) * d


class KeyShare(FIRE):
    """The distance as a share of the key's position."""

    def pair(self, i: Tensor, j: Tensor) -> Tensor:
        return super().pair(j + 0 * i, j - (i - j))
