"""Loss against tokens and against minutes: our training beside nanoGPT's, on the same text and batches.

python -m benchmarks.quality_per_minute nanogpt=/path/to/nanoGPT seeds=1,2,3     # some minutes a seed

nanoGPT's own recipe for a CPU (its README: 4 layers, 4 heads, 128 channels, 64 tokens, batches of 12, 2,000
steps, learning rate 1e-3 to 1e-4, its own groups and betas), fed with our Shakespeare as bytes, against our
model, optimizer and schedule (configs/optim/adamw.yaml) at the same shape. All see the same batches. They take
turns in chunks of steps, so that all meet the same machine, and only their training is on the clock.

Two comparisons, each with a whole schedule: equal tokens (as many steps), and equal time. For the second our
model trains again, for as many steps as fit into the time that nanoGPT's would take, by the measured time of a
step; reading one run's curve at that moment would catch it with its learning rate still high.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.options import begin, command, machine, recorded, save
from errors import UserError
from revision import ROOT


@dataclass
class Settings:
    nanogpt: str | None = None  # folder of a checkout
    out: str = "docs/results/quality.json"
    schemes: list[str] = field(default_factory=lambda: ["rope", "learned"])
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    steps: int = 2000
    chunks: int = 20  # turns that a run is cut into; a validation after each
    eval_tokens: int = 65536
    threads: int = 0  # 0: torch's choice
    patience: float = 60.0  # seconds to wait for a quiet machine before a turn


BATCH, CONTEXT = 12, 64
WIDTH, LAYERS, HEADS, HIDDEN = 128, 4, 4, 344  # 0.79M parameters a model beside the embeddings
TRIAL = 150  # steps that time a step


class Run:
    """A model in training: `train` takes some steps and keeps the time."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        loss: Callable[[Any], Any],
        rate: Callable[[int, int], float],
        steps: int,
    ) -> None:
        """loss: of tokens (B, T + 1), the mean in nats; rate: learning rate by step and steps."""
        self.model, self.optimizer, self.loss, self.rate = model, optimizer, loss, rate
        self.steps, self.done, self.seconds = steps, 0, 0.0
        self.curve: list[dict[str, float]] = []

    def train(self, loader: Any, steps: int) -> None:
        from torch.nn.utils import clip_grad_norm_

        batches = [loader.batch(self.done + i).tokens for i in range(steps)]
        began = time.perf_counter()
        for tokens in batches:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(self.done, self.steps)
            self.loss(tokens).backward()
            clip_grad_norm_(self.model.parameters(), 1.0)  # both recipes say 1
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.done += 1
        self.seconds += time.perf_counter() - began

    def validate(self, held_out: list[Any]) -> None:
        import torch

        with torch.no_grad():
            loss = sum(self.loss(tokens).item() for tokens in held_out) / len(held_out)
        if not math.isfinite(loss):
            raise UserError(f"the loss is {loss} after {self.done} steps")
        point = {"steps": self.done, "tokens": self.done * BATCH * CONTEXT}
        self.curve.append(point | {"seconds": self.seconds, "loss": loss})


def our_run(name: str, vocab_size: int, steps: int, seed: int) -> Run:
    from omegaconf import OmegaConf

    from benchmarks.subjects import Shape, mean_nats, ours
    from configs.schema import OptimSettings
    from training.optim import build_optimizer, learning_rate

    optim = OptimSettings(**OmegaConf.load(ROOT / "configs/optim/adamw.yaml"))  # type: ignore
    assert optim.clip == 1.0
    model = ours(Shape(WIDTH, LAYERS, HEADS, HIDDEN, vocab_size, CONTEXT), name, seed)
    optimizer = build_optimizer(model, optim)
    rate = lambda step, steps: learning_rate(step, steps, optim)  # noqa: E731
    return Run(model, optimizer, lambda tokens: mean_nats(model, tokens), rate, steps)


def nanogpt_run(path: str | None, vocab_size: int, steps: int, seed: int) -> Run:
    import torch

    from benchmarks.peers import Absent, nanogpt
    from benchmarks.subjects import Shape

    torch.manual_seed(seed)
    try:
        model, loss = nanogpt(Shape(WIDTH, LAYERS, HEADS, HIDDEN, vocab_size, CONTEXT), path)
    except Absent as reason:
        raise UserError(str(reason)) from None
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")  # type: ignore
    return Run(model, optimizer, lambda tokens: loss(model, tokens), nanogpt_rate, steps)


def nanogpt_rate(step: int, steps: int) -> float:
    """Its train.py's get_lr with its recipe's numbers: 1e-3 after 100 steps, down to 1e-4 at the end."""
    high, low, warmup = 1e-3, 1e-4, min(100, steps // 2)
    if step < warmup:
        return high * (step + 1) / (warmup + 1)
    return low + (high - low) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def measure(settings: Settings, corpus: Any = None) -> dict[str, Any]:
    import torch

    from data.loader import Loader

    begin(settings, [settings.out], [])
    if settings.threads:
        torch.set_num_threads(settings.threads)
    text, held_out, vocab_size = streams(corpus or shakespeare())
    windows = Loader(held_out, context_length=CONTEXT, batch_size=32, seed=0, document_mask=False)
    count = max(1, min(settings.eval_tokens, len(held_out.tokens)) // (32 * CONTEXT))
    validation = [windows.batch(i).tokens for i in range(count)]
    report: dict[str, Any] = {"machine": machine(), "settings": recorded(settings), "seeds": []}
    for seed in settings.seeds:
        loader = Loader(
            text, context_length=CONTEXT, batch_size=BATCH, seed=seed, document_mask=False
        )
        report["seeds"].append({"seed": seed} | one_seed(settings, loader, validation, vocab_size))
        save(settings.out, report)
    return report


def shakespeare() -> Any:
    from omegaconf import OmegaConf

    from configs.check import build
    from data.corpora import CORPORA

    settings: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "configs/data/shakespeare.yaml"))
    return build("data", CORPORA, settings)


def streams(corpus: Any) -> tuple[Any, Any, int]:
    """Training and validation tokens, bytes as our pipeline makes them, and the size of the vocabulary."""
    from data.prepare import prepare_split, prepare_tokenizer
    from data.tokenizer import Bytes

    tokenizer = prepare_tokenizer(corpus, Bytes())
    text, held_out = (prepare_split(corpus, split, tokenizer) for split in ("train", "validation"))
    return text, held_out, tokenizer.vocab_size


def one_seed(
    settings: Settings, loader: Any, validation: list[Any], vocab_size: int
) -> dict[str, Any]:
    from benchmarks.timing import wait_until_quiet

    steps = {"nanoGPT": settings.steps} | dict.fromkeys(settings.schemes, settings.steps)

    def start(name: str, steps: int) -> Run:
        if name == "nanoGPT":
            return nanogpt_run(settings.nanogpt, vocab_size, steps, loader.seed)
        return our_run(name, vocab_size, steps, loader.seed)

    pace = paces({name: start(name, steps[name]) for name in steps}, loader, settings.patience)
    runs = {name: start(name, n) for name, n in steps.items()}
    for name in settings.schemes:
        fitting = round(settings.steps * pace["nanoGPT"] / pace[name])
        runs[f"{name}, equal time"] = start(name, max(settings.chunks, fitting))
    for chunk in range(settings.chunks):
        for run in runs.values():
            end = run.steps * (chunk + 1) // settings.chunks
            wait_until_quiet(settings.patience)
            run.train(loader, end - run.done)
            run.validate(validation)
        losses = "  ".join(f"{name} {run.curve[-1]['loss']:.3f}" for name, run in runs.items())
        print(f"seed {loader.seed}, {chunk + 1} of {settings.chunks}: {losses}", flush=True)
    return {"pace": pace, "curves": {name: run.curve for name, run in runs.items()}}


def paces(runs: dict[str, Run], loader: Any, patience: float) -> dict[str, float]:
    """Seconds a step of each, in turns; the runs are thrown away."""
    from benchmarks.timing import wait_until_quiet

    for run in runs.values():
        run.train(loader, 3)
        run.seconds = 0.0
    for _ in range(3):
        for run in runs.values():
            wait_until_quiet(patience)
            run.train(loader, TRIAL // 3)
    return {name: run.seconds / TRIAL for name, run in runs.items()}


if __name__ == "__main__":
    command(Settings, measure, __doc__)
