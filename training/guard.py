"""Numbers that go wrong: a loss or a gradient that is infinite or NaN.

Every step is looked at where it is computed, on the device: the optimizer leaves everything as it was where the
gradient is not finite (AdamW's `found_inf`, which GradScaler uses too), and a few counters remember. Reading
those makes a GPU wait, so the loop asks on a CPU after each step, elsewhere when it logs or saves: such a step
is never applied and never saved, on any device. In float16 a few are normal, since the loss scaler learns its
scale from them; only many in a row, or a scale that has shrunk to nothing, end the run.
"""

import torch
from torch import Tensor

from errors import UserError
from training.precision import Precision

IN_A_ROW = 50  # float16 steps without one that could be applied
LEAST_SCALE = 1e-4  # fairseq's --min-loss-scale


class Guard:
    def __init__(self, precision: Precision, counts: list[int]):
        """counts: steps that were not applied: all of them, those in a row just now, the newest one."""
        self.precision, self.before = (
            precision,
            counts[0],
        )  # perhaps of a run that was in float16 then
        self.counts = torch.tensor(counts, device=precision.device)

    def see(self, step: int, loss: Tensor, norm: Tensor) -> Tensor:
        """1.0 where loss or norm of step `step` is no finite number, else 0.0; on the device."""
        bad = (~(loss.isfinite() & norm.isfinite())).long()
        total, row, newest = self.counts
        self.counts = torch.stack((total + bad, (row + bad) * bad, newest + bad * (step - newest)))
        return bad.float()

    def check(self, scaler: torch.amp.GradScaler, said: str) -> list[int]:
        """The counts, as for a checkpoint; UserError, with what is `said` of the last one, ends the run."""
        total, row, newest = counts = self.counts.tolist()
        if self.precision.name != "fp16":
            if total > self.before:
                raise UserError(
                    f"step {newest}: the loss or its gradient is not finite; {said}. Most likely optim.lr is too high:"
                    f" try a lower optim.lr, or a longer optim.warmup_steps"
                )
        elif row >= IN_A_ROW or scaler.get_scale() < LEAST_SCALE:
            raise UserError(
                f"step {newest}: {row} steps in a row had a gradient that is not finite, at a loss scale of"
                f" {scaler.get_scale():.2g}; {said}. Most likely float16 is too narrow or optim.lr too high:"
                f" try precision=bf16, or a lower optim.lr"
            )
        return counts
