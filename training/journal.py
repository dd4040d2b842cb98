"""What a run says of itself: numbers of a step to metrics.jsonl, to the tracker and to the terminal."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from data.loader import Batch, batch_hash
from training.checkpoint import State
from training.metrics import NoMetrics
from training.progress import Lines
from training.tracker import NoTracker


@dataclass
class Journal:
    metrics: NoMetrics
    tracker: NoTracker
    progress: Lines
    state: State
    tokens: int  # a step, over all devices
    ideal: float  # seconds a step by arithmetic, at the speed of a matrix product: training/cost.py
    losses: list[float | Tensor] = field(init=False)  # since the last logged step

    def __post_init__(self) -> None:
        self.losses = list(self.state.losses)
        self.spent, self.began = self.state.seconds, time.monotonic()
        self.mark()

    def mark(self) -> None:
        """Speed is measured from here: it is that of steps, not of validation and saving."""
        self.step, self.time = self.state.step, time.monotonic()

    def training(self, norm: Tensor, lr: float) -> dict[str, float]:
        """The train/* metrics of the steps since this was called last."""
        losses, self.losses = [float(loss) for loss in self.losses], []
        steps, seconds = self.state.step - self.step, time.monotonic() - self.time
        return {
            "train/loss": sum(losses) / len(losses),
            "train/grad_norm": norm.item(),
            "train/lr": lr,
            "train/tokens_per_second": steps * self.tokens / seconds,
            "train/mfu": steps * self.ideal / seconds,
        }

    def log(self, numbers: dict[str, float], batch: Callable[[], Batch]) -> None:
        """batch: reads again what the step read, on all devices; asked by who writes it down alone."""
        state, tokens = self.state, self.state.step * self.tokens
        state.seconds = self.spent + time.monotonic() - self.began
        where = {"step": state.step, "tokens": tokens}
        hashed = lambda: batch_hash(batch())  # noqa: E731
        self.metrics.log(numbers, **where, seconds=state.seconds, batch=hashed)
        self.tracker.log(numbers, **where)
        forms = {
            "train/loss": "loss {:.3f}",
            "train/tokens_per_second": "{:,.0f} tokens/s",
            "val/loss": "validation {:.3f}",
        }
        texts = [form.format(numbers[key]) for key, form in forms.items() if key in numbers]
        self.progress.update(state.step, "  ".join(texts))

    def sync(self) -> None:
        """All that is said so far is on the disk, and what is not said yet is in the state to be saved."""
        self.metrics.sync()
        self.state.losses = [float(loss) for loss in self.losses]
        self.state.seconds = self.spent + time.monotonic() - self.began
