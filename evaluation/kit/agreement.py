"""Checks of a whole model against the brute-force formula: outputs, masks, positions, gradients."""

import torch
from torch import Tensor

from evaluation.kit.reference import BruteForce
from evaluation.kit.subjects import CONTEXT, Result, Subject, gap
from model.transformer import Transformer


def expected(
    s: Subject,
    model: Transformer,
    tokens: Tensor,
    pos: Tensor | None = None,
    segments: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Features (B, T, C) float64 by brute force."""
    brute, rows = BruteForce(model, s.settings), []
    with torch.no_grad():
        for b, row in enumerate(tokens):
            p = pos[b] if pos is not None and pos.dim() == 2 else pos
            rows.append(brute.features(row, p, None if segments is None else segments[b], window))
    return torch.stack(rows)


def formula(s: Subject) -> Result:
    """The paper's formula, float64, beyond the trained length."""
    x = s.tokens()
    return Result(gap(s.model().features(x), expected(s, s.model(), x)), 5e-6)


def float32(s: Subject) -> Result:
    model, x = s.model(torch.float32), s.tokens()
    return Result(gap(model.features(x), expected(s, model, x)), 1e-4)


def free_positions(s: Subject) -> Result:
    """Positions are data: clamped, strewn, in any order."""
    model, x, errors = s.model(), s.tokens(), []
    for kind in ("clamped", "sorted", "random"):
        pos = s.positions(kind)
        errors.append(gap(model.features(x, pos=pos), expected(s, model, x, pos)))
    return Result(max(errors), 5e-6)


def masks(s: Subject) -> Result:
    """A sliding window, alone and inside documents."""
    model, x, errors = s.model(), s.tokens(), []
    for segments, window in ((None, 9), (documents(x), 9)):
        got = model.features(x, segments=segments, window=window)
        errors.append(gap(got, expected(s, model, x, None, segments, window)))
    return Result(max(errors), 5e-6)


def documents(x: Tensor) -> Tensor:
    """Document numbers (B, T): the rows differ, and one document is a single token."""
    index = torch.arange(x.shape[1])
    rows = [(index >= x.shape[1] // 3).long(), (index >= 7) + 3 * (index >= 11) + (index >= 12)]
    return torch.stack(rows)[: len(x)]


def gradients(s: Subject) -> Result:
    """Every weight's gradient, float32 against float64, at odd lengths."""
    model, errors = s.build(torch.float32), []
    for T in (1, min(s.length, CONTEXT + 8)):
        x = s.tokens(2, T)
        weights = torch.randn(
            2, T, model.config.d_model, generator=torch.Generator().manual_seed(T)
        )
        model.zero_grad()
        (model.features(x) * weights).sum().backward()
        brute = BruteForce(model, s.settings)
        (torch.stack([brute.features(row) for row in x]) * weights).sum().backward()
        for p, leaf in brute.leaves.items():
            want = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            errors.append(relative(torch.zeros_like(p) if p.grad is None else p.grad, want))
    return Result(max(errors), 3e-4)


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference as a share of the largest entry, or of 0.1 where all are small."""
    if not a.isfinite().all():
        return float("inf")
    return float((a.double() - b).abs().max() / b.abs().max().clamp(min=0.1))


def bfloat16(s: Subject) -> Result:
    """Cast to bfloat16, and under autocast: it runs, and is the formula to that accuracy."""
    x, errors = s.tokens(), []
    for dtype, autocast in ((torch.bfloat16, False), (torch.float32, True)):
        model = s.model(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = model.features(x)
        difference = y.double() - expected(s, model, x)
        errors.append(float(difference.square().mean().sqrt()) if y.isfinite().all() else torch.inf)
    return Result(max(errors), 0.05)
