"""Mistakes, as people have really made them; the kit must catch every one.

A case says what to patch and which checks have to fail. A check that nothing here makes fail may
be no check at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import broken_schemes as wrong
import pytest
import torch
from torch._dynamo.exc import Unsupported

import model.attention
import model.fold
import model.position.alibi
import model.transformer
from evaluation.kit.subjects import FADING_AND_NONE, PAIRS_AND_PAIRS
from model.attention import Places
from model.position import POSITIONS
from model.position.base import Position
from model.transformer import Transformer

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Case:
    name: str
    option: str  # the scheme that is examined
    patch: Patch | type[Position]  # a type: takes the scheme's place
    caught_by: tuple[str, ...]
    error: type[Exception] | None = None  # what the checks may raise instead of finding a number
    of: dict[str, Any] = field(default_factory=dict)  # settings that are not the file's

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        if isinstance(self.patch, type):
            patch.setitem(POSITIONS, self.option, self.patch)
        else:
            self.patch(patch)


def naive_slopes(patch: pytest.MonkeyPatch) -> None:
    def one_series(n_heads: int, exponent: float = 8.0) -> tuple[float, ...]:
        return tuple(2 ** (-exponent * (h + 1) / n_heads) for h in range(n_heads))

    patch.setattr(model.position.alibi, "slopes", one_series)


def no_bias_when_cached(patch: pytest.MonkeyPatch) -> None:
    attend = model.attention.attend

    def forgetful(q, k, v, position, clock, places, scale):
        if q.shape[2] < k.shape[2]:
            position, clock = Position(position.config), None
        return attend(q, k, v, position, clock, places, scale)

    patch.setattr(model.attention, "attend", forgetful)


def causal_by_position(patch: pytest.MonkeyPatch) -> None:
    def attend(q, k, v, position, clock, places, scale):
        seen = places.q_pos[..., :, None] >= places.k_pos[..., None, :]
        seen = seen if seen.dim() == 2 else seen[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=scale, enable_gqa=True
        )

    patch.setattr(model.attention, "attend", attend)


def changed_places(change: Callable[[Places], Places]) -> Patch:
    original = Transformer.places
    return lambda patch: patch.setattr(
        Transformer, "places", lambda *a, **k: change(original(*a, **k))
    )


def counts_from_zero(places: Places) -> Places:
    """Every chunk."""
    return replace(places, q_pos=places.q_pos - places.q_pos.min())


def future_of_long_blocks(patch: pytest.MonkeyPatch) -> None:
    """In blocks of 128 queries and more each sees the next token, too."""
    toeplitz = model.attention.toeplitz

    def leaking(table: torch.Tensor, rows: int) -> torch.Tensor:
        block = toeplitz(table, rows)
        if rows < 128:
            return block
        return torch.cat((block[..., :1], block[..., :-1]), dim=-1)

    patch.setattr(model.attention, "toeplitz", leaking)


def own_window_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The log scale counts what a layer's own window hides."""
    patch.setattr(model.transformer, "smallest", lambda own, of_call: of_call)


def scores_by_block_alone(patch: pytest.MonkeyPatch) -> None:
    """Kept for the next layer, whatever its scheme."""
    pairs = model.attention.pairs

    def kept(position, places, a, b, low, high, keep):
        found = places.pairs.get((a, b, low, high))
        if found is None:
            found = pairs(position, places, a, b, low, high, keep)
            places.pairs[a, b, low, high] = found
        return found

    patch.setattr(model.attention, "pairs", kept)


def no_documents(places: Places) -> Places:
    return replace(places, segments=None)


def runs_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.transformer, "restarted", lambda index, segments: index.expand(2, -1))


def packed_length(patch: pytest.MonkeyPatch) -> None:
    """A scheme sees the length of the window, not of its document."""
    patch.setattr(Places, "lengths", lambda self: torch.full_like(self.segments, self.length))


def wide_window(patch: pytest.MonkeyPatch) -> None:
    smallest = model.attention.smallest

    def one_more(a: int | None, b: int | None) -> int | None:
        window = smallest(a, b)
        return None if window is None else window + 1

    patch.setattr(model.attention, "smallest", one_more)


def rounded_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.fold, "clock_parts", lambda c, dtype, exact: [c.to(dtype)])


def low_attention(patch: pytest.MonkeyPatch) -> None:
    """As autocast would have it."""
    sdpa = model.attention.sdpa
    patch.setattr(
        model.attention,
        "sdpa",
        lambda q, *rest, **more: sdpa(q.bfloat16().to(q.dtype), *rest, **more),
    )


def shifted_diagonal(patch: pytest.MonkeyPatch) -> None:
    toeplitz = model.attention.toeplitz
    patch.setattr(
        model.attention,
        "toeplitz",
        lambda table, rows: toeplitz(torch.cat((table[:, :1], table[:, :-1]), dim=-1), rows),
    )


def shared_stream(patch: pytest.MonkeyPatch) -> None:
    """A scheme's weights are drawn from the numbers that the others' would have been."""
    reset = Transformer.reset
    patch.setattr(
        Transformer,
        "reset",
        lambda self, seed: reset(self, seed + len([*self.schemes.parameters()])),
    )


LLAMA, LLAMA_8 = "transformers' Llama", "transformers' Llama, factor 8"
BEYOND = "cache, beyond the context"
MASKS, DISTINCT = "formula, windows and documents", "65,536 distinct positions"
BLOOM, MPT, FALCON = "transformers' BLOOM", "transformers' MPT", "transformers' Falcon, slopes"
T5, SLOPES = "transformers' T5, buckets", "slopes of 6, 8, 12 heads"
XPOS, GATE, WAVES = (f"x-transformers, {x}" for x in ("products", "forget gate", "waves"))
TIMES, NTK = "positions times the factor = rope", "factor 8 = rope_ntk by 8 l/L - 7"
UNPERMUTED, TEMPERATURE = "interleaved differs, unpermuted", "temperature = a softmax scale"

LOG_WINDOWS = {"layers": FADING_AND_NONE, "softmax_scale": "log"}
TWO_NETWORKS = {"layers": PAIRS_AND_PAIRS}

CASES = [
    Case("wrong pairing", "rope", wrong.WrongPairs, ("formula", LLAMA)),
    Case(
        "never turned", "rope", wrong.NeverTurned, ("formula", "swap", LLAMA, DISTINCT, UNPERMUTED)
    ),
    Case("queries turned twice", "rope", wrong.QueriesTwice, ("formula", "shift")),
    Case("angles in bfloat16", "rope", wrong.LowAngles, ("formula", "far vectors", DISTINCT)),
    Case("angles under autocast", "rope", wrong.AutocastAngles, ("far vectors", DISTINCT)),
    Case("table in unsaved memory", "rope", wrong.TableInMemory, ("built on meta",)),
    Case("a branch on positions", "rope", wrong.Branching, ("compiled",), Unsupported),
    Case("factor applied twice", "rope_linear", wrong.FactorTwice, ("formula", LLAMA_8, TIMES)),
    Case("ramp inverted", "rope_yarn", wrong.InvertedRamp, ("formula", LLAMA_8)),
    Case("temperature twice", "rope_yarn", wrong.Hot, ("formula", LLAMA_8, TEMPERATURE)),
    Case("never grows", "rope_dynamic", wrong.NeverGrows, ("formula", LLAMA_8, NTK)),
    Case("remembers the longest text", "rope_dynamic", wrong.RemembersLongest, ("call order",)),
    Case("the window's length", "rope_dynamic", packed_length, (MASKS, "documents")),
    Case("says it is steady", "rope_dynamic", wrong.SaysItIsSteady, (BEYOND, MASKS, "documents")),
    Case("says it varies", "rope", wrong.SaysItVaries, (BEYOND,)),
    Case("grows with distance", "xpos", wrong.Blooming, ("formula", XPOS)),
    Case(
        "sines first",
        "sinusoidal",
        wrong.SinesFirst,
        ("formula", WAVES, "sine and cosine by turns"),
    ),
    Case("clamps silently", "learned", wrong.SilentClamp, ("formula",), IndexError),
    Case("crashes beyond the table", "learned", wrong.Crashing, ("length limit",), IndexError),
    Case("bias by 1/sqrt(d)", "alibi", wrong.ScaledBias, ("formula", BLOOM, FALCON)),
    Case("sign flipped", "alibi", wrong.FlippedSign, ("formula", BLOOM, "far scores")),
    Case("naive slopes", "alibi", naive_slopes, ("formula", MPT, SLOPES)),
    Case("two-sided buckets", "t5", wrong.TwoSidedBuckets, ("formula", T5, "bucket starts")),
    Case("table never trained", "t5", wrong.Untrained, ("gradients",)),
    Case("bias in bfloat16", "kerple_log", wrong.LowBias, ("far scores",)),
    Case("linear, not a power", "kerple_power", wrong.Straight, ("formula", "gradients")),
    Case("gates one token early", "fox", wrong.GateTooEarly, ("formula", GATE)),
    Case("running sum starts anew", "fox", wrong.StartsAnew, ("cache",)),
    Case("gate reads the batch", "fox", wrong.BatchMean, ("batch neighbours",)),
    Case("share of the key", "fire", wrong.KeyShare, ("formula", MASKS)),
    Case("no bias when cached", "alibi", no_bias_when_cached, ("cache",)),
    Case("no bias when cached", "t5", no_bias_when_cached, ("cache",)),
    Case("a chunk counts from 0", "rope", changed_places(counts_from_zero), ("cache",)),
    Case(
        "causal by position", "none", causal_by_position, ("causality", "formula, free positions")
    ),
    Case("documents leak", "rope", changed_places(no_documents), (MASKS, "documents")),
    Case("positions run on", "sinusoidal", runs_on, (MASKS, "documents")),
    Case("window one too wide", "none", wide_window, (MASKS,)),
    Case("clock rounded", "alibi", rounded_clock, ("far clock",)),
    Case("clock rounded", "fox", rounded_clock, ("score form, bfloat16",)),
    Case(
        "attends in bfloat16", "none", low_attention, ("formula, float32", "score form, last rows")
    ),
    Case("widens what it turns", "rope", wrong.Widening, ("formula, bfloat16",), RuntimeError),
    Case("distances off by one", "t5", shifted_diagonal, ("formula", "score form, float32")),
    *(
        Case("long blocks leak", option, future_of_long_blocks, ("score form, whole blocks",))
        for option in ("none", "alibi", "t5", "fire", "fox", "hybrid")
    ),
    Case(
        "own window forgotten", "hybrid", own_window_forgotten, ("formula", MASKS), of=LOG_WINDOWS
    ),
    Case("scores by block alone", "hybrid", scores_by_block_alone, ("formula",), of=TWO_NETWORKS),
    Case("weights from a shared stream", "t5", shared_stream, ("paired weights",)),
]
