"""The loss on held-out text while training goes on: the same windows every time, whatever the run's seed.

Windows are drawn as in training (they may cross documents unless they are masked), so this number says how
well the run does what it is trained to do. How far it reaches is another question, and eval.py's.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from data.loader import Loader
from data.prepare import TokenSplit
from training.distributed import World
from training.positions import HELD_OUT, draw
from training.precision import Precision


class Validation:
    def __init__(
        self,
        split: TokenSplit,
        *,
        context_length: int,
        batch_size: int,
        tokens: int,
        document_mask: bool,
        position_range: int | None,
        rows: int,
        device: torch.device,
        world: World,
    ):
        """tokens: about how many to score, rounded to whole batches and at most one pass over the split.

        rows: sequences that the model reads at once, as in training.
        """
        batch_size = min(batch_size, len(split.tokens) // context_length) or 1
        self.loader = Loader(
            split,
            context_length=context_length,
            batch_size=batch_size,
            seed=0,
            document_mask=document_mask,
        )
        most = len(split.tokens) // context_length // batch_size
        self.batches = max(1, min(most, tokens // (batch_size * context_length)))
        self.position_range, self.rows = position_range, rows
        self.device, self.world = device, world

    @torch.no_grad()
    def measure(self, model: Callable[..., Tensor], precision: Precision) -> dict[str, float]:
        """val/loss in nats per token, val/ppl, val/bpb. Each rank reads its rows of a batch, perhaps none."""
        nats, tokens, size = 0.0, 0, 0
        mine = slice(self.world.rank, None, self.world.size)
        token_bytes: np.ndarray = self.loader.split.token_bytes
        for i in range(self.batches):
            batch = self.loader.batch(i)
            pos = draw(self.position_range, batch.tokens.shape[1] - 1, HELD_OUT, i)
            pos = None if pos is None else pos.to(self.device)
            own = batch.tokens[mine]
            for a in range(0, len(own), self.rows):
                some = slice(a, a + self.rows)
                inputs, targets = own[some, :-1], own[some, 1:]
                segments = None if batch.segments is None else batch.segments[mine][some]
                segments = None if segments is None else segments.to(self.device)
                with precision.autocast():
                    found = model(
                        inputs.to(self.device), targets.to(self.device), segments=segments, pos=pos
                    )
                nats += found.double().sum().item()
                tokens += targets.numel()
                size += int(token_bytes[targets.numpy()].sum())
        nats, tokens, size = self.world.total(nats, tokens, size)
        loss = nats / tokens
        ppl = math.exp(loss) if loss < 700 else math.inf
        return {"val/loss": loss, "val/ppl": ppl, "val/bpb": nats / (math.log(2) * max(1, size))}
