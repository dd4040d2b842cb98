"""A clock's scores in a few extra channels of queries and keys: any kernel computes them, maskless.

scale[h] · (c_i - c_j) is a product of vectors: (slope, slope · c_i) times (-c_j, 1). The work is in
doing it exactly.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from model.position.base import Clock, constant


def fold(
    q: Tensor, k: Tensor, v: Tensor, clock: Clock, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Channels in front of q and k with the product clock.scale · (c_i - c_j) / scale; v padded.

    Multiplying slope · c_j as one number would lose digits: it is large where the difference is
    small (off by 7e-4 at 8,192 tokens in float32, useless in bfloat16). So slope and c are split
    into parts with so few bits that a kernel that sums in float32 multiplies them exactly, and next
    to each part of -c_j stands its own c_i, so that large numbers cancel at once. The c_i terms are
    the same for all keys of a query: the softmax ignores their rounding, and gives them no
    gradient. Where all slopes are powers of two, float32 multiplies them exactly with all its bits.
    """
    # float16's largest number is 65,504. A gradient of readings is a sum of many that cancel; in
    # bfloat16, in which a kernel would return them, what is left would be noise.
    if q.dtype == torch.float16 or (q.dtype == torch.bfloat16 and clock.c.requires_grad):
        q, k, v = q.float(), k.float(), v.float()
    B, H, Tq, D = q.shape
    Tk, dtype = k.shape[2], q.dtype
    if clock.c.shape[1] > k.shape[1]:  # one reading a query head: no key is shared any more
        k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    clock = absorbed(clock, scale)
    # Counted from the middle query, so small near it: some kernels do not sum the channels in order.
    c = clock.c - clock.c[..., -1 - Tq // 2, None].detach()
    slopes = slope_parts(clock.scale, scale, dtype)
    exact = all(power_of_two(s) for part in slopes for s in part) and len(slopes) == 1
    parts = clock_parts(c, dtype, exact)
    q_extra, k_extra = [], []
    for s in slopes:
        slope = constant(s, torch.float64, q.device).view(1, H, 1).to(dtype)
        for c in parts:
            shift = (slope.double() * c[..., Tk - Tq :].detach().double()).to(dtype)
            q_extra += [slope.expand(B, H, Tq), shift.expand(B, H, Tq)]
            k_extra += [-c.expand(B, k.shape[1], Tk), torch.ones_like(k[..., 0])]
    q, k = with_channels(q_extra, q), with_channels(k_extra, k)
    return q, k, F.pad(v, (0, q.shape[-1] - D))


def with_channels(extra: list[Tensor], x: Tensor) -> Tensor:
    """`extra` as channels in front of x, and zeros behind: GPU kernels and backward passes want multiples of 8."""
    quick = x.is_cpu and not torch.is_grad_enabled()  # there narrower is quicker
    pad = 0 if quick else -(len(extra) + x.shape[-1]) % 8
    return torch.cat(
        (torch.stack(extra, dim=-1), x, x.new_zeros(1).expand(*x.shape[:-1], pad)), dim=-1
    )


def absorbed(clock: Clock, scale: float) -> Clock:
    """The same scores, the slopes in c where it is float64 and by head: fewer extra channels."""
    if clock.c.dtype != torch.float64 or clock.c.shape[1] != len(clock.scale):
        return clock
    slopes = constant(clock.scale, torch.float64, clock.c.device).view(-1, 1)
    return Clock((scale,) * len(clock.scale), clock.c * (slopes / scale))


def power_of_two(slope: float) -> bool:
    """Whether float32 multiplies it exactly with any number."""
    return abs(math.frexp(slope)[0]) == 0.5


def slope_parts(slopes: tuple[float, ...], scale: float, dtype: torch.dtype) -> list[list[float]]:
    """slopes / scale as sums of numbers of 12 bits in float32, 8 in bfloat16; zero parts left out.

    Veltkamp's splitting in Python's floats: constants to torch.compile, as numpy's would not be.
    """
    rest = [slope / scale for slope in slopes]
    if dtype == torch.float64:
        return [rest]
    split, parts = 2.0 ** (53 - (12 if dtype == torch.float32 else 8)) + 1, []
    while len(parts) < 2 and any(rest):
        parts.append([x * split - (x * split - x) for x in rest])
        rest = [x - part for x, part in zip(rest, parts[-1], strict=True)]
    if dtype == torch.float32:  # the last part may use all of float32's bits
        parts[-1] = [part + x for part, x in zip(parts[-1], rest, strict=True)]
    return parts


def clock_parts(c: Tensor, dtype: torch.dtype, exact: bool) -> list[Tensor]:
    """c as a sum of parts in `dtype`, of 12 bits in float32 (24 for slopes that are `exact`), 8 in bfloat16.

    24 bits of a float32 c, at least 32 of a float64 one (a long running sum). The gradient of every
    part is that of c, so it goes through the last alone.
    """
    if dtype == torch.float64:
        return [c.double()]
    bits = 8 if dtype == torch.bfloat16 else 24 if exact else 12
    double = c.dtype == torch.float64
    digits, wanted, whole = (53, 32, torch.int64) if double else (24, 24, torch.int32)
    parts = []
    for _ in range(-(-wanted // bits) - 1):
        high = (c.detach().view(whole) & -(1 << digits - bits)).view(c.dtype)
        parts.append(high.to(dtype))
        c = c - high
    return [*parts, c.to(dtype)]
