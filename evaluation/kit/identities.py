"""Facts that tie schemes to each other and to published numbers: exact, or to float64's rounding.

A fact belongs to a scheme and needs no settings from outside.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evaluation.kit.subjects import CONTEXT, LENGTH, Result, Subject, by_name, gap
from model.position import alibi as alibi_scheme
from model.transformer import Transformer

SCALINGS = ("rope_linear", "rope_ntk", "rope_by_parts", "rope_yarn", "rope_llama3")


def same(a: Subject, b: Subject, T: int | None = None, bound: float = 1e-12) -> Result:
    """The two give the same features, from the same weights."""
    x = a.tokens(2, T)
    return Result(gap(a.model().features(x), b.model().features(x)), bound)


def factor_one(option: str, T: int | None = None, **changes: Any) -> Result:
    return same(by_name(option, factor=1, **changes), by_name("rope"), T)


def llama3_by_parts() -> Result:
    return same(by_name("rope_llama3"), by_name("rope_by_parts", alpha=1, beta=4), bound=0.0)


def dynamic_within() -> Result:
    return same(by_name("rope_dynamic", factor=8), by_name("rope"), CONTEXT)


def dynamic_beyond(factor: float) -> Result:
    """A text of l tokens has the frequencies of NTK scaling by factor · l/L - (factor - 1)."""
    s = factor * LENGTH / CONTEXT - (factor - 1)
    return same(by_name("rope_dynamic", factor=factor), by_name("rope_ntk", factor=s))


def yarn_without_temperature() -> Result:
    yarn = by_name("rope_yarn", ramp="paper", temperature=0, beta=4, factor=8)
    return same(yarn, by_name("rope_by_parts", beta=4, factor=8))


def yarn_temperature() -> Result:
    """Cosines and sines times a are scores times a²: once, as a softmax scale would."""
    a = 0.1 * math.log(8) + 1
    scale = by_name("rope").config().scale * a * a
    cold = by_name("rope_yarn", factor=8, temperature=0, softmax_scale=scale)
    return same(by_name("rope_yarn", factor=8, temperature=0.1), cold)


def linear_positions() -> Result:
    """Position 8 m divided by 8 is position m."""
    linear, rope = by_name("rope_linear", factor=8), by_name("rope")
    x, pos = rope.tokens(), torch.arange(rope.length)
    return Result(gap(linear.model().features(x, pos=8 * pos), rope.model().features(x)), 1e-12)


def keep_nothing() -> Result:
    return same(by_name("rope", keep=0), by_name("none"), bound=0.0)


def xpos_unfading() -> Result:
    return same(by_name("xpos", scale_base=1e15), by_name("rope", keep=1, fraction=1), bound=1e-10)


def layouts() -> Result:
    """Interleaved is split-half once the channels of wq and wk are permuted, evens first."""
    one, other = by_name("rope", layout="interleaved"), by_name("rope").build()
    D, x = other.config.d_head, one.tokens()
    order = torch.cat((torch.arange(0, D, 2), torch.arange(1, D, 2)))
    with torch.no_grad():
        for i in range(other.config.n_layers):
            block: Any = other.blocks[i]
            for w in (block.attn.wq.weight, block.attn.wk.weight):
                w.copy_(w.unflatten(0, (-1, D))[:, order].flatten(0, 1))
    return Result(gap(other.features(x), one.model().features(x)), 1e-12)


def layouts_differ() -> Result:
    found = same(by_name("rope", layout="interleaved"), by_name("rope"))
    return Result(found.error, 1e-3, least=True)


def set_weights(s: Subject, **values: Tensor) -> Transformer:
    """The scheme's model with some of its own weights given, in every layer."""
    model = s.build()
    with torch.no_grad():
        for position in model.schemes:
            for name, value in values.items():
                position.get_parameter(name).copy_(value)
    return model


def like_alibi(option: str, weights: Callable[[Tensor], dict[str, Tensor]]) -> Result:
    """With these weights for ALiBi's slopes."""
    alibi = by_name("alibi")
    given = weights(torch.tensor(alibi_scheme.slopes(6), dtype=torch.float64))
    x = alibi.tokens()
    features = set_weights(by_name(option), **given).features(x)
    return Result(gap(features, alibi.model().features(x)), 1e-12)


def constant_gate(m: Tensor) -> dict[str, Tensor]:
    """ln sigmoid(bias) = -m."""
    return {"weight": torch.zeros(()), "bias": torch.logit(torch.exp(-m))}


def exponent_one(m: Tensor) -> dict[str, Tensor]:
    """softplus(r1) = m, 2 sigmoid(r2) = 1."""
    return {"raw_r1": torch.log(torch.expm1(m)), "raw_r2": torch.zeros(())}


def alibi_slopes() -> Result:
    """The authors' rule, written out: exponents for 6, 8 and 12 heads."""
    want = {
        6: [2, 4, 6, 8, 1, 3],
        8: [1, 2, 3, 4, 5, 6, 7, 8],
        12: [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5],
    }
    errors = [
        abs(-math.log2(slope) - exponent)
        for heads, row in want.items()
        for slope, exponent in zip(alibi_scheme.slopes(heads), row, strict=True)
    ]
    return Result(max(errors), 1e-12)


def t5_buckets() -> Result:
    """Where buckets 16 to 31 of 32 start, as published code gives them for distances to 128."""
    starts = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    model = set_weights(by_name("t5"), table=torch.arange(32.0))
    found = model.positions[0].distance(torch.arange(300))[0].tolist()
    want = [sum(start <= d for start in [*range(1, 16), *starts]) for d in range(300)]
    return Result(max(abs(a - b) for a, b in zip(found, want, strict=True)), 0.0)


def complex_rotation() -> Result:
    """Neighbours as one complex number, times e^(i p θ), for positions of any shape (..., T)."""
    position = by_name("rope", layout="interleaved").model().positions[0]
    D, generator = position.config.d_head, torch.Generator().manual_seed(8)
    x = torch.randn(3, 6, 10, D, dtype=torch.float64, generator=generator)
    theta = torch.tensor([10_000 ** (-2 * k / D) for k in range(D // 2)], dtype=torch.float64)
    errors = []
    for pos in (torch.arange(10), torch.randint(5000, (3, 10), generator=generator)):
        angle = (pos[..., None] * theta).expand(3, 10, D // 2)[:, None]
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(
            torch.ones_like(angle), angle
        )
        turned, _ = position.rotate(x, x, pos, pos, 10)
        errors.append(gap(turned, torch.view_as_real(z).flatten(-2)))
    return Result(max(errors), 1e-10)


def additive_waves() -> Result:
    """Even channels sine, odd channels cosine, of the same angle; added."""
    position = by_name("sinusoidal").model().positions[0]
    C = position.config.d_model
    pos = torch.arange(50, dtype=torch.float64)[:, None]
    angle = pos * torch.exp(torch.arange(0, C, 2, dtype=torch.float64) * (-math.log(10_000) / C))
    got = position.embed(torch.zeros(1, 50, C, dtype=torch.float64), torch.arange(50))[0]
    return Result(max(gap(got[:, 0::2], angle.sin()), gap(got[:, 1::2], angle.cos())), 1e-10)


def hybrid_of_one() -> Result:
    rope = by_name("rope")
    return same(by_name("hybrid", layers=[{**rope.settings, "window": None}]), rope, bound=0.0)


def learned_within(extend: str) -> Result:
    """Inside the table an extension is the table (interpolation: stretched by 1)."""
    return same(by_name("learned", extend=extend, factor=1), by_name("learned"), CONTEXT, bound=0.0)


def clamped() -> Result:
    """Every position beyond the table is its last row."""
    s, plain = by_name("learned", extend="clamp"), by_name("learned")
    x, index = s.tokens(), torch.arange(s.length)
    want = plain.model().features(x, pos=index.clamp(max=CONTEXT - 1))
    return Result(gap(s.model().features(x), want), 0.0)


def log_scale() -> Result:
    """The query that sees as many keys as the trained context has the usual scale."""
    x = by_name("none").tokens()
    log, plain = (by_name("none", softmax_scale=v).model(n_layers=1) for v in ("log", None))
    last = CONTEXT - 1
    return Result(gap(log.features(x)[:, last], plain.features(x)[:, last]), 1e-6)


FACTS: list[tuple[str, str, Callable[[], Result]]] = [  # (scheme, fact, check)
    *((option, "factor 1 = rope", partial(factor_one, option)) for option in SCALINGS),
    ("rope_dynamic", "factor 1 within L = rope", partial(factor_one, "rope_dynamic", CONTEXT)),
    ("rope_yarn", "factor 1, ramp=paper = rope", partial(factor_one, "rope_yarn", ramp="paper")),
    ("rope_yarn", "ramp=paper, temperature 0 = by parts", yarn_without_temperature),
    ("rope_yarn", "temperature = a softmax scale", yarn_temperature),
    ("rope_llama3", "= by parts (1, 4)", llama3_by_parts),
    ("rope_dynamic", "up to the trained length = rope", dynamic_within),
    ("rope_dynamic", "beyond it = rope_ntk by l/L", partial(dynamic_beyond, 1)),
    ("rope_dynamic", "factor 8 = rope_ntk by 8 l/L - 7", partial(dynamic_beyond, 8)),
    ("rope_linear", "positions times the factor = rope", linear_positions),
    ("rope", "keep 0 = none", keep_nothing),
    ("rope", "interleaved = split_half, permuted", layouts),
    ("rope", "interleaved differs, unpermuted", layouts_differ),
    ("rope", "interleaved = complex rotation", complex_rotation),
    ("xpos", "without fading = rope", xpos_unfading),
    ("sinusoidal", "sine and cosine by turns", additive_waves),
    ("fox", "constant gate = alibi", partial(like_alibi, "fox", constant_gate)),
    ("kerple_power", "exponent 1 = alibi", partial(like_alibi, "kerple_power", exponent_one)),
    ("alibi", "slopes of 6, 8, 12 heads", alibi_slopes),
    ("t5", "bucket starts", t5_buckets),
    ("hybrid", "of one entry = that scheme", hybrid_of_one),
    ("learned", "clamp within the table", partial(learned_within, "clamp")),
    ("learned", "interpolate by 1", partial(learned_within, "interpolate")),
    ("learned", "clamp beyond = last row", clamped),
    ("none", "log scale at the trained length", log_scale),
]
