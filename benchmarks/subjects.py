"""What is measured: our models by size and scheme, the training step that all models share.

What is unusual: scheme settings are read from configs/position by a reader of just the YAML that those files
use, so that a machine without a YAML library can run them (a test holds it against one).

B batch, T tokens, V vocabulary.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from benchmarks.options import scalar
from errors import UserError
from model.config import ModelConfig
from model.transformer import Transformer
from revision import ROOT

POSITIONS = ROOT / "configs/position"
SCHEMES = sorted(path.stem for path in POSITIONS.glob("*.yaml"))
CLIP = 1.0


@dataclass(frozen=True)
class Shape:
    d_model: int
    n_layers: int
    n_heads: int
    d_ff: int
    vocab_size: int = 4096
    context: int = 256

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            vocab_size=self.vocab_size,
            context_length=self.context,
            d_model=self.d_model,
            n_layers=self.n_layers,
            n_heads=self.n_heads,
            n_kv_heads=self.n_heads,
            d_ff=self.d_ff,
            norm_eps=1e-5,
            tie_embeddings=True,
            softmax_scale=None,
        )


SHAPES = {  # by the number of parameters beside the embeddings; 124M is GPT-2's name for its size
    "tiny": Shape(32, 2, 2, 64, vocab_size=64),
    "3M": Shape(256, 4, 4, 704),
    "10M": Shape(384, 6, 6, 1024),
    "124M": Shape(768, 12, 12, 2048, vocab_size=50304),
}


def shape(size: str, context: int, **other: int) -> Shape:
    if size not in SHAPES:
        raise UserError(f"size {size} is unknown: there is {', '.join(SHAPES)}")
    return replace(SHAPES[size], context=context, **other)


def scheme(name: str) -> dict[str, Any]:
    """configs/position/<name>.yaml: keys with a plain value, or a list of entries in braces."""
    if name not in SCHEMES:
        raise UserError(f"scheme {name} is unknown: there is {', '.join(SCHEMES)}")
    found: dict[str, Any] = {}
    for line in (POSITIONS / f"{name}.yaml").read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("- {"):
            found[next(reversed(found))].append(pairs(line[3:-1]))
        elif line:
            key, _, value = line.partition(":")
            found[key] = scalar(value.strip()) if value.strip() else []
    return found


def pairs(text: str) -> dict[str, Any]:
    """The inside of {a: 1, b: two}."""
    halves = (part.partition(":") for part in text.split(","))
    return {key.strip(): scalar(value.strip()) for key, _, value in halves}


def ours(shape: Shape, name: str, seed: int = 0) -> Transformer:
    model = Transformer(shape.config, scheme(name))
    model.reset(seed)
    return model


def mean_nats(model: Callable[..., Tensor], tokens: Tensor) -> Tensor:
    """Our model's loss on tokens (B, T + 1), as train.py takes it."""
    return model(tokens[:, :-1], tokens[:, 1:], mean=True)


class Trainee:
    """A model and its training step: the same optimizer, clipping and order of work for everybody."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        *,
        compiled: bool = False,
        fullgraph: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        """loss: of the model (perhaps compiled) on tokens (B, T + 1); dtype: of autocast, None for none."""
        self.model, self.loss = model, loss
        self.device = next(model.parameters()).device.type
        # dynamic=False: as a first compilation does it, however many shapes this process sees
        self.run = torch.compile(model, dynamic=False, fullgraph=fullgraph) if compiled else model
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.dtype = dtype
        self.scaler = torch.amp.GradScaler(self.device, enabled=dtype == torch.float16)

    def step(self, tokens: Tensor) -> Tensor:
        """Forward, loss, backward, clip, step, zero_grad; the loss, still on the device."""
        cast = torch.autocast(self.device, dtype=self.dtype) if self.dtype else nullcontext()
        with cast:
            loss = self.loss(self.run, tokens)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.model.parameters(), CLIP)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()
