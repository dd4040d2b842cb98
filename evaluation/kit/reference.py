"""The decoder around a position formula, by brute force: float64, one sequence, a T x T softmax.

It takes the weights out of a model and calls none of its methods, so that whatever the model
computes, cached, chunked, compiled, in bfloat16, can be compared with what it should. Gradients
too: every weight is a leaf of its own here.

T tokens, C model width, H heads, D head width.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from evaluation.kit import formulas, rotary
from evaluation.kit.formulas import Reference
from model.config import ModelConfig
from model.transformer import Transformer

REFERENCES: dict[str, type[Reference]] = {
    "none": Reference,
    "learned": formulas.Learned,
    "sinusoidal": formulas.Sinusoidal,
    "rope": rotary.RoPE,
    "rope_linear": rotary.Linear,
    "rope_ntk": rotary.NTK,
    "rope_dynamic": rotary.Dynamic,
    "rope_by_parts": rotary.ByParts,
    "rope_yarn": rotary.YaRN,
    "rope_llama3": rotary.Llama3,
    "xpos": rotary.XPos,
    "alibi": formulas.ALiBi,
    "t5": formulas.T5,
    "kerple_log": formulas.KerpleLog,
    "kerple_power": formulas.KerplePower,
    "fire": formulas.FIRE,
    "sandwich": formulas.Sandwich,
    "fox": formulas.FoX,
}


def reference_of(name: str) -> type[Reference]:
    if name not in REFERENCES:
        raise NotImplementedError(f"{name} has no reference formula: add one to evaluation/kit")
    return REFERENCES[name]


class BruteForce:
    """Computes what `model` should, from copies of its weights."""

    def __init__(self, model: Transformer, settings: Mapping[str, Any]):
        self.model, self.config = model, model.config
        self.leaves = {p: p.detach().double().clone().requires_grad_() for p in model.parameters()}
        own = [
            {name: self.leaves[p] for name, p in position.named_parameters()}
            for position in model.positions
        ]
        plan = layer_plan(self.config, settings)
        self.windows = [window for _, window in plan]
        self.formulas = [
            reference_of(s["name"])(self.config, s, weights)
            for (s, _), weights in zip(plan, own, strict=True)
        ]

    def features(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        segments: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """What the output layer reads (T, C), for tokens (T,), pos (T,), segments (T,)."""
        pos = natural_positions(len(tokens), segments) if pos is None else pos
        pos = pos.double()
        x = self.leaf(self.model.embed)[tokens]
        said = set()
        for formula, position in zip(self.formulas, self.model.positions, strict=True):
            if position not in said:  # layers that share an object share its embedding
                x = formula.embed(x, pos)
            said.add(position)
        for i in range(self.config.n_layers):
            block: Any = self.model.blocks[i]
            seen = visible(len(tokens), segments, [window, self.windows[i]])
            h = self.norm(x, block.attn_norm)
            x = x + self.attention(i, block.attn, h, pos, seen, segments)
            h = self.norm(x, block.ffn_norm)
            w1, w2, w3 = map(self.leaf, (block.ffn.w1, block.ffn.w2, block.ffn.w3))
            gate = h @ w1.T
            x = x + (gate * torch.sigmoid(gate) * (h @ w3.T)) @ w2.T
        return self.norm(x, self.model.norm)

    def leaf(self, module: Any) -> Tensor:
        return self.leaves[module.weight]

    def norm(self, x: Tensor, module: Any) -> Tensor:
        mean = (x * x).mean(-1, keepdim=True)
        return x / torch.sqrt(mean + self.config.norm_eps) * self.leaf(module)

    def attention(
        self,
        i: int,
        module: Any,
        x: Tensor,
        pos: Tensor,
        seen: Tensor,
        segments: Tensor | None,
    ) -> Tensor:
        q, k, v = (
            (x @ self.leaf(w).T).unflatten(-1, (-1, self.config.d_head)).transpose(0, 1)
            for w in (module.wq, module.wk, module.wv)
        )
        groups = self.config.n_heads // self.config.n_kv_heads
        head = torch.arange(self.config.n_heads) // groups  # the key/value head of each query head
        scale = softmax_scale(self.config, seen.sum(-1))[:, None]
        products = torch.zeros(len(q), len(x), len(x), dtype=torch.float64)
        for d in documents(len(x), segments):  # each is a text of its own
            products[:, d, d] = self.formulas[i].products(q[:, d], k[head][:, d], pos[d])
        scores = scale * products + self.formulas[i].bias(x, pos)
        shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
        y = (shares @ v[head]).transpose(0, 1).flatten(1)
        return y @ self.leaf(module.wo).T


def layer_plan(
    config: ModelConfig, settings: Mapping[str, Any]
) -> list[tuple[Mapping[str, Any], int | None]]:
    """(settings, window) of each layer; a list of layers goes round."""
    if "layers" not in settings:
        return [(settings, None)] * config.n_layers
    entries = settings["layers"]
    return [(e, e["window"]) for i in range(config.n_layers) for e in [entries[i % len(entries)]]]


def natural_positions(T: int, segments: Tensor | None) -> Tensor:
    """0, 1, 2, ..., from 0 again at each document's first token."""
    pos = [0]
    for t in range(1, T):
        same = segments is None or segments[t] == segments[t - 1]
        pos.append(pos[-1] + 1 if same else 0)
    return torch.tensor(pos)


def documents(T: int, segments: Tensor | None) -> list[slice]:
    """Where each document stands."""
    starts = [t for t in range(T) if natural_positions(T, segments)[t] == 0]
    return [slice(a, b) for a, b in pairwise([*starts, T])]


def visible(T: int, segments: Tensor | None, windows: list[int | None]) -> Tensor:
    """(T, T) bool: query i sees key j."""
    i, j = torch.arange(T)[:, None], torch.arange(T)[None, :]
    seen = j <= i
    for window in windows:
        if window is not None:
            seen = seen & (i - j < window)
    return seen if segments is None else seen & (segments[:, None] == segments[None, :])


def softmax_scale(config: ModelConfig, seen: Tensor) -> Tensor:
    """(T,): what multiplies q·k of a query that sees so many keys.

    "log": SSMax (Nakanishi 2025), with the usual scale at the trained length.
    """
    if isinstance(config.softmax_scale, float | int):
        return torch.full(seen.shape, float(config.softmax_scale), dtype=torch.float64)
    scale = torch.full(seen.shape, 1 / math.sqrt(config.d_head), dtype=torch.float64)
    if config.softmax_scale == "log":
        scale = scale * seen.double().log() / math.log(config.context_length)
    return scale
