"""Parts of benchmarks/gpu.py about attention alone: how exact our forms are there, and FlexAttention beside them.

Errors are against float64 formulas of the same inputs (rounded to the tested format first), for some queries of
each text. The relative error is |out - reference| / |reference| over those.

B batch, T tokens, H heads, D head width, R chosen queries.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.gpu_models import Bench, Cases, multiplying
from benchmarks.subjects import Shape, scheme
from model.attention import Places, turn_and_attend
from model.position import build_positions
from model.position.base import Position

ROWS = 128  # queries held against float64
FORMATS = {  # tested format: dtype, TF32
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
    "fp16": (torch.float16, False),
}


def position_of(name: str, heads: int, width: int, device: torch.device | str) -> Position:
    """The scheme in one layer, its weights larger than for training so that its scores count."""
    config = Shape(heads * width, 1, heads, 4, vocab_size=4, context=1024).config
    (position,) = build_positions(config, scheme(name))
    position.reset(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in position.parameters():
            parameter *= 4
    return position.to(device)


def inputs(
    heads: int, width: int, length: int, dtype: torch.dtype, device: torch.device | str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v (1, H, T, D) in `dtype`, and a layer's input x (1, T, C) for clocks that read it."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = torch.randn(3, 1, heads, length, width, generator=generator).to(device, dtype)
    x = torch.randn(1, length, heads * width, generator=generator)
    return q, k, v, x.to(device)


def our_attention(position: Position, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
    pos = torch.arange(q.shape[2], device=q.device)
    clock = position.clock(x, pos) if position.form == "clock" else None
    places = Places(pos, pos, None, None, True)
    return turn_and_attend(q, k, v, position, clock, places, q.shape[-1] ** -0.5)


@torch.no_grad()
def reference(
    position: Position, q: Tensor, k: Tensor, v: Tensor, x: Tensor, rows: Tensor
) -> Tensor:
    """(1, H, R, D) float64: softmax(q·k / sqrt(D) + the scheme's scores) v for queries `rows` (R,)."""
    T, D = q.shape[2:]
    pos = torch.arange(T, device=q.device)
    q, k, v = q[:, :, rows].double(), k.double(), v.double()
    q, k = position.rotate(q, k, rows, pos, T)
    scores = q @ k.mT * D**-0.5
    if position.form == "clock":
        clock = position.clock(x, pos)
        c = clock.c.double()
        slopes = torch.tensor(clock.scale, dtype=torch.float64, device=q.device).view(-1, 1, 1)
        scores += slopes * (c[..., rows].unsqueeze(-1) - c.unsqueeze(-2))
    elif position.form != "none":
        scores += position.pair(rows[:, None], pos[None]).double()
    return scores.masked_fill(pos > rows[:, None], -torch.inf).softmax(-1) @ v


def chosen(length: int, device: torch.device | str) -> Tensor:
    """Queries to look at: the first, the last, and evenly between."""
    return torch.linspace(0, length - 1, min(ROWS, length), device=device).long()


def error(out: Tensor, exact: Tensor) -> dict[str, float]:
    difference = out.double() - exact
    return {
        "max_error": difference.abs().max().item(),
        "relative_error": (difference.norm() / exact.norm()).item(),
    }


def fold(bench: Bench) -> Cases:
    """Our attention against float64 in every format; `none` is the kernel's own error."""

    def compare(name: str, heads: int, length: int, form: str) -> dict[str, Any]:
        dtype, tf32 = FORMATS[form]
        position = position_of(name, heads, 64, bench.device)
        made = inputs(heads, 64, length, dtype, bench.device)
        rows = chosen(length, bench.device)
        with torch.no_grad(), multiplying(tf32):
            out = our_attention(position, *made)[:, :, rows]
        return error(out, reference(position, *made, rows)) | {"kernels": kernels(position, made)}

    for form in FORMATS:
        for length in bench.pick([1024, 8192], [48]):
            for name in ("none", "rope", "alibi", "fox", "t5", "fire"):
                for heads in (8, 12) if name == "alibi" else (12,):
                    about = {"scheme": name, "heads": heads, "length": length, "format": form}
                    work = lambda n=name, h=heads, t=length, f=form: compare(n, h, t, f)  # noqa: E731
                    yield about, work


def kernels(position: Position, made: tuple[Tensor, Tensor, Tensor, Tensor]) -> str | None:
    """The attention kernels that CUDA ran; None on a CPU."""
    if made[0].device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.no_grad(), torch.profiler.profile(activities=activities) as profile:
        our_attention(position, *made)
        torch.cuda.synchronize()
    names = {event.key[:80] for event in profile.key_averages()}
    words = ("flash", "fmha", "attention", "sdpa", "cudnn")
    return "; ".join(sorted(n for n in names if any(w in n.lower() for w in words)))


def score_mod(position: Position, length: int, device: torch.device) -> Callable[..., Tensor]:
    """The same scheme as FlexAttention takes it."""
    if position.form == "clock":
        slopes = torch.tensor(position.slopes, device=device)  # type: ignore[arg-type]
        return lambda score, b, h, i, j: score - slopes[h] * (i - j)
    table = position.distance(torch.arange(length, device=device))
    return lambda score, b, h, i, j: score + table[h, (i - j).clamp(min=0)]


def flex(bench: Bench) -> Cases:
    """Forward, and forward with backward: ours (fold, Toeplitz blocks) against FlexAttention, bfloat16."""
    for name in ("alibi", "t5"):
        for length in bench.pick([2048, 8192, 16384], [48]):
            for kind in ("ours", "ours, compiled", "flex"):
                about = {"scheme": name, "length": length, "case": kind}
                yield about, lambda n=name, t=length, k=kind: one_flex(bench, n, t, k)


def one_flex(bench: Bench, name: str, length: int, kind: str) -> dict[str, Any]:
    heads, width, device = 12, bench.pick(64, 16), bench.device
    position = position_of(name, heads, width, device)
    q, k, v, x = inputs(heads, width, length, torch.bfloat16, device)
    compiling = not bench.tiny
    if kind == "flex":
        causal = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, length, length, device=device.type
        )
        call = torch.compile(flex_attention, dynamic=False) if compiling else flex_attention

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mod = score_mod(position, length, device)
            return call(q, k, v, score_mod=mod, block_mask=causal)  # type: ignore
    else:

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return our_attention(position, q, k, v, x)

        if kind == "ours, compiled" and compiling:
            attend = torch.compile(attend, dynamic=False)
    rows = chosen(length, device)
    with torch.no_grad():
        found: dict[str, Any] = error(
            attend(q, k, v)[:, :, rows], reference(position, q, k, v, x, rows)
        )
        found["forward_seconds"] = bench.time(lambda: attend(q, k, v), bench.pick(10, 1))
    if kind == "flex" and device.type == "cpu":  # PyTorch has no backward for it there
        return found
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]

    def both() -> None:
        attend(leaves[0], leaves[1], leaves[2]).sum().backward()

    return found | {"both_seconds": bench.time(both, bench.pick(10, 1))}
