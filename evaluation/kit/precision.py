"""Checks that positions stay exact up to 65,536: in float32, under autocast, cast to bfloat16."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from evaluation.kit.reference import BruteForce
from evaluation.kit.subjects import Result, Subject
from model.position.base import Position

FAR = 65_536
QUERIES = 64
MODES = ("float32", "autocast", "bfloat16")


@contextmanager
def mode(s: Subject, name: str) -> Iterator[tuple[list[Position], BruteForce, torch.dtype]]:
    """The positions and formulas of a model, and the dtype that queries and keys have in it."""
    model = s.model(torch.bfloat16 if name == "bfloat16" else torch.float32, n_layers=s.shallow)
    low = torch.float32 if name == "float32" else torch.bfloat16
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
        yield model.positions, BruteForce(model, s.settings), low


def places(s: Subject) -> Tensor:
    """The first positions of a long text and the last ones."""
    last = min(FAR, s.model().max_length or FAR)
    if last <= 2 * QUERIES:
        return torch.arange(last)
    return torch.cat((torch.arange(QUERIES), torch.arange(last - QUERIES, last)))


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(6)).to(dtype)


def moves(position: Position) -> bool:
    """The scheme changes vectors."""
    mine = type(position)
    return mine.rotate is not Position.rotate or mine.embed is not Position.embed


def far_vectors(s: Subject) -> Result:
    """Added vectors, and products of turned unit vectors, against the formula.

    Shares of the bound, which is higher where queries and keys are bfloat16 themselves.
    """
    pos, shares = places(s), []
    n, config = len(pos), s.config()
    for name in MODES:
        with mode(s, name) as (positions, brute, low):
            bound = 1e-5 if name == "float32" else 1e-2
            for position, formula in zip(positions, brute.formulas, strict=True):
                zero = torch.zeros(1, n, config.d_model, dtype=low)
                added = position.embed(zero, pos)[0].double()
                shares.append(worst(added, formula.embed(zero[0].double(), pos.double())) / bound)
                q, k = normal(2, 1, config.n_heads, n, config.d_head, dtype=torch.float32)
                q, k = (x.div(x.norm(dim=-1, keepdim=True)).to(low) for x in (q, k))
                late = slice(-QUERIES, None)
                turned, keys = position.rotate(q[:, :, late], k, pos[late], pos, n)
                got = (turned.double() @ keys.double().mT)[0]
                want = formula.products(q[0].double(), k[0].double(), pos.double())[:, late]
                past = pos[late, None] >= pos
                shares.append(worst(got * past, want * past) / bound)
    return Result(max(shares), 1.0)


def worst(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative where numbers are above 1."""
    return float(((a - b).abs() / b.abs().clamp(min=1)).max().nan_to_num(nan=torch.inf))


def far_scores(s: Subject) -> Result:
    """Biases over distances up to 65,535, against the formula."""
    pos, errors = places(s), []
    i, j = pos[:, None], pos[None, :]
    for name in MODES:
        with mode(s, name) as (positions, brute, low):
            x = normal(1, len(pos), s.config().d_model, dtype=low)
            for position, formula in zip(positions, brute.formulas, strict=True):
                if position.form == "none":
                    continue
                if position.form == "clock":
                    clock = position.clock(x, pos)
                    c, slopes = clock.c[0].double(), torch.tensor(clock.scale, dtype=torch.float64)
                    got = slopes[:, None, None] * (c[:, :, None] - c[:, None, :])
                elif position.form == "distance":
                    got = position.distance((i - j).clamp(min=0)).double()
                else:
                    got = position.pair(i, j).double()
                want = formula.bias(x[0].double(), pos.double())
                errors.append(worst(got.tril(), want.tril()))
    return Result(max(errors), 1e-4)


def distinct(s: Subject) -> Result:
    """65,536 positions give 65,536 different vectors, in each mode."""
    pos, config = torch.arange(FAR), s.config()
    hashed = normal(max(config.d_head, config.d_model), dtype=torch.float64)
    fewest = FAR
    for name in MODES:
        with mode(s, name) as (positions, _, _):
            for position in filter(moves, positions):
                ones = torch.ones(1, 1, FAR, config.d_head)
                turned, _ = position.rotate(ones, ones[:, :, :1], pos, pos[:1], FAR)
                added = position.embed(torch.zeros(1, FAR, config.d_model), pos)
                rows = turned[0, 0].double() @ hashed[: config.d_head]
                rows = rows + added[0].double() @ hashed[: config.d_model]
                fewest = min(fewest, len(rows.unique()))
    return Result(fewest, FAR, least=True)
