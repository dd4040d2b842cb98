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
        tokens: int,
        document_mask: bool,
        position_range: int | None,
        rows: int,
        device: torch.device,
        world: World,
    ):
        """tokens: about how many to score, rounded to whole sequences and at most one pass over the split.

        rows: sequences that the model reads at once, as in training. What is measured depends neither
        on them nor on how many processes there are, but for rounding.
        """
        self.loader = Loader(
            split,
            context_length=context_length,
            batch_size=1,
            seed=0,
            document_mask=document_mask,
        )
        self.sequences = max(1, min(len(split.tokens), tokens) // context_length)
        self.position_range, self.rows = position_range, rows
        self.device, self.world = device, world

    @torch.no_grad()
    def measure(self, model: Callable[..., Tensor], precision: Precision) -> dict[str, float]:
        """val/loss in nats per token, val/ppl, val/bpb. Each rank reads its own sequences, perhaps none."""
        nats, tokens, size = 0.0, 0, 0
        mine = range(self.world.rank, self.sequences, self.world.size)
        token_bytes: np.ndarray = self.loader.split.token_bytes
        for a in range(0, len(mine), self.rows):
            some = mine[a : a + self.rows]
            batch = self.loader.samples(some)
            counted = batch.targets[batch.targets >= 0]
            on = batch.to(self.device)
            with precision.autocast():
                found = model(
                    on.inputs, on.targets, segments=on.documents, pos=self.positions(some)
                )
            nats += found.double().sum().item()
            tokens += counted.numel()
            size += int(token_bytes[counted.numpy()].sum())
        nats, tokens, size = self.world.total(nats, tokens, size)
        loss = nats / tokens
        ppl = math.exp(loss) if loss < 700 else math.inf
        return {"val/loss": loss, "val/ppl": ppl, "val/bpb": nats / (math.log(2) * max(1, size))}

    def positions(self, sequences: range) -> Tensor | None:
        """(B, T) drawn for each, or None where nothing is drawn."""
        if self.position_range is None:
            return None
        length = self.loader.context_length
        drawn = [draw(self.position_range, length, HELD_OUT, i) for i in sequences]
        return torch.stack(drawn).to(self.device)  # type: ignore[arg-type]
