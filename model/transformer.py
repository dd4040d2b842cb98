"""A Llama-style decoder: RMSNorm, SwiGLU, no biases, no dropout, grouped-query attention.

The model takes tokens and, if somebody wants others than 0, 1, 2, ..., positions. Which position
scheme runs is not known here: `model.positions` holds one object a layer, and the layers call it
where a scheme may speak (position/base.py). Called with targets, the model returns -log p of each
in nats, and computes logits for scored tokens alone.

Axes: B batch, T tokens, C model width, H heads, Hkv key/value heads, D head width, V vocabulary,
K scored tokens.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import UserError
from model.attention import Places, restarted, smallest, turn_and_attend
from model.cache import Cache, LayerCache
from model.config import ModelConfig
from model.kernels import RMSNorm, mean_nats
from model.position import build_positions
from model.position.base import Clock, Position, wide

LOGIT_ELEMENTS = 2**24  # logits held at once: 64 MiB in float32


class Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        C, D = config.d_model, config.d_head
        self.wq = nn.Linear(C, config.n_heads * D, bias=False)
        self.wk = nn.Linear(C, config.n_kv_heads * D, bias=False)
        self.wv = nn.Linear(C, config.n_kv_heads * D, bias=False)
        self.wo = nn.Linear(config.n_heads * D, C, bias=False)

    def forward(
        self, x: Tensor, position: Position, places: Places, cache: LayerCache | None
    ) -> Tensor:
        q = self.heads(self.wq(places.tail(x)))
        k, v = self.heads(self.wk(x)), self.heads(self.wv(x))
        clock = None
        if position.form == "clock":
            last = None if cache is None else cache.last
            clock = position.clock(x, places.k_pos[..., -x.shape[1] :], last)
        if cache is not None:
            k, v, c = cache.append(k, v, clock.c if clock else None)
            clock = Clock(clock.scale, c) if clock and c is not None else None
        if self.config.log_scale is not None:
            seen = places.seen(smallest(position.window, places.window))  # (T,) or (B, T)
            q = (wide(q) * (seen.log() * self.config.log_scale)[..., None, :, None]).type_as(q)
        y = turn_and_attend(q, k, v, position, clock, places, self.config.scale)  # (B, H, Tq, D)
        return self.wo(y.transpose(1, 2).flatten(2))

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.d_head)).transpose(1, 2)  # (B, H or Hkv, T, D)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020): w2(silu(w1 x) · w3 x)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.w1 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.w2 = nn.Linear(config.d_ff, config.d_model, bias=False)
        self.w3 = nn.Linear(config.d_model, config.d_ff, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ffn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(
        self, x: Tensor, position: Position, places: Places, cache: LayerCache | None
    ) -> Tensor:
        x = places.tail(x) + self.attn(self.attn_norm(x), position, places, cache)
        return x + self.ffn(self.ffn_norm(x))


class Transformer(nn.Module):
    def __init__(self, config: ModelConfig, position: Mapping[str, Any]):
        """position: the scheme's `name` and its settings, as in configs/position."""
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embed.weight
        self.positions = build_positions(config, position)  # one a layer, often the same object
        self.schemes = nn.ModuleList(dict.fromkeys(self.positions))  # each once: owns parameters

    def reset(self, seed: int) -> None:
        """Draw all weights anew: those outside the schemes bit for bit the same for every scheme.

        Embeddings and projections normal(0, init_std); the projections that write to the residual
        stream, wo and w2, by 1/sqrt(2 n_layers) less (GPT-2); norms 1; a scheme's own parameters as
        the scheme says.
        """
        generator = torch.Generator().manual_seed(seed)
        deep = self.config.init_std / (2 * self.config.n_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if name.startswith("schemes."):
                continue
            if parameter.dim() == 1:
                nn.init.ones_(parameter)
            else:
                std = deep if name.endswith(("wo.weight", "w2.weight")) else self.config.init_std
                nn.init.normal_(parameter, std=std, generator=generator)
        generator = torch.Generator().manual_seed(seed + 2**32)  # another stream
        for scheme in self.schemes:
            scheme.reset(generator)  # type: ignore[operator]

    @property
    def max_length(self) -> int | None:
        """The longest sequence that every layer's scheme is defined for; None: any."""
        limits = [p.max_length for p in self.positions if p.max_length is not None]
        return min(limits, default=None)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        *,
        mean: bool = False,
        pos: Tensor | None = None,
        segments: Tensor | None = None,
        window: int | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits (B, T, V) float32; with targets (B, K) nats (B, K) float32 of the last K positions,
        or their mean, the loss to train on. A target of -100 is none: 0 nats, not part of the mean.

        tokens (B, T); pos (T,) or (B, T), by default counting on from the cache, or from 0 in each
        document; segments (B, T) document numbers, where a token may see its own document alone;
        window: how many tokens it may see.
        """
        last = None if targets is None else targets.shape[1]
        x = self.features(tokens, pos=pos, segments=segments, window=window, cache=cache, last=last)
        if targets is None:
            return self.head(x).float()
        if mean:
            return mean_nats(x.flatten(0, 1), self.head.weight, targets.flatten())
        return self.nats(x, targets)

    def features(
        self,
        tokens: Tensor,
        *,
        pos: Tensor | None = None,
        segments: Tensor | None = None,
        window: int | None = None,
        cache: Cache | None = None,
        last: int | None = None,
    ) -> Tensor:
        """What the output layer reads: (B, T, C), or (B, last, C) of the last tokens alone.

        The other tokens' part of the last layer are its keys and values; the rest is not computed.
        """
        places = self.places(tokens, pos, segments, window, cache)
        x = self.embed(tokens)
        for scheme in self.schemes:
            x = scheme.embed(x, places.q_pos)  # type: ignore[operator]
        for i, block in enumerate(self.blocks):
            if i == len(self.blocks) - 1:
                places = places.of_last(last)
            x = block(x, self.positions[i], places, cache.layers[i] if cache else None)
        return self.norm(x)

    def nats(self, x: Tensor, targets: Tensor) -> Tensor:
        """-log p (B, K) float32 of targets (B, K) by features x (B, K, C), some rows at a time."""
        rows = max(1, LOGIT_ELEMENTS // self.config.vocab_size)
        pairs = zip(x.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True)
        parts = [F.cross_entropy(self.head(a).float(), b, reduction="none") for a, b in pairs]
        return torch.cat(parts).view(targets.shape)

    def places(
        self,
        tokens: Tensor,
        pos: Tensor | None,
        segments: Tensor | None,
        window: int | None,
        cache: Cache | None,
    ) -> Places:
        if window is not None and window < 1:
            raise ValueError(f"window={window} must be at least 1")
        if cache is not None and segments is not None:
            raise ValueError("a cache holds one document a row: no segments")
        if cache is not None and cache.length and cache.consecutive != (pos is None):
            raise ValueError(
                "a cache begun with positions given needs them in every call, or in none"
            )
        start = cache.length if cache else 0
        consecutive = pos is None
        if pos is None:
            pos = torch.arange(start, start + tokens.shape[1], device=tokens.device)
            if segments is not None:
                pos = restarted(pos, segments)
            self.check_length(start + tokens.shape[1])
        elif self.max_length is not None and pos.is_cpu and not torch.compiler.is_compiling():
            self.check_length(int(pos.max()) + 1)  # a GPU would be waited for: callers know theirs
        k_pos = pos
        if cache is not None:
            k_pos = pos if cache.pos is None else torch.cat((cache.pos, pos), dim=-1)
            cache.pos, cache.consecutive = k_pos, consecutive
        return Places(pos, k_pos, segments, window, consecutive)

    def check_length(self, length: int) -> None:
        if self.max_length is not None and length > self.max_length:
            raise UserError(
                f"this position scheme is defined for {self.max_length} positions (position.rows), not for {length}"
            )
