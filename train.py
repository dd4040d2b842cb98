"""Train one language model: python train.py position=rope

Read top to bottom: `train` puts the pieces together, `Loop.run` is the loop, `Loop.step` one step of the
optimizer. The loop keeps nothing that a checkpoint does not: which tokens step n sees and how fast it learns
are pure functions of n. Heavy imports wait inside `train`, so that `--help` and a mistyped key answer at
once.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.check import build
from configs.cli import command
from configs.schema import TrainConfig
from errors import UserError

if TYPE_CHECKING:
    import torch

    from data.loader import Batch, Loader
    from model.transformer import Transformer
    from training import checkpoint
    from training.distributed import World
    from training.metrics import NoMetrics
    from training.precision import Precision
    from training.progress import Lines
    from training.tracker import NoTracker
    from training.validation import Validation


def train(config: TrainConfig, given: list[str], world: World) -> None:
    import torch

    from data.corpora import CORPORA
    from data.loader import Loader
    from data.prepare import prepare_split, prepare_tokenizer
    from data.tokenizer import TOKENIZERS, Tokenizer
    from training import checkpoint, run
    from training.metrics import MetricsFile, NoMetrics
    from training.optim import build_optimizer
    from training.precision import Precision
    from training.progress import show
    from training.tracker import TRACKERS, NoTracker
    from training.validation import Validation

    # Which run: a new one, or one that goes on in its own folder with its own configuration
    folder, config, resumed = world.share(lambda: run.open_run(config, given, run.output_folder()))
    settings, T = config.train, config.context_length

    # Everything that a setting can get wrong, before any work
    world.check_batch(settings.batch_size, settings.accumulate)
    device = world.device(config.device)
    precision = Precision.choose(config.precision, device)
    tracker = build("tracker", TRACKERS, config.tracker)
    tracker = tracker if world.main else NoTracker()  # built on all: a wrong key fails on all
    corpus = build("data", CORPORA, config.data)
    spec = build("tokenizer", TOKENIZERS, config.tokenizer)
    origin = None
    if config.init_from and not resumed:
        origin = world.share(partial(run.locate, config.init_from, "init_from"))
    with torch.device("meta"):
        shape = run.build_model(config, vocab_size=257)
        shape.check_length(max(T, settings.position_range or 0))
        build_optimizer(shape, config.optim)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = config.tf32

    # Data
    own = folder / "tokenizer.json"
    tokenizer = world.first(
        lambda: Tokenizer.load(own) if resumed else prepare_tokenizer(corpus, spec)
    )
    text, held_out = (
        world.first(partial(prepare_split, corpus, split, tokenizer))
        for split in ("train", "validation")
    )
    world.same("the text in data.train and data.validation", (text.hash, held_out.hash))
    mask, batch_size = corpus.document_mask, settings.batch_size
    loader = Loader(
        text,
        context_length=T,
        batch_size=batch_size,
        seed=config.seed,
        document_mask=mask,
        rank=world.rank,
        world=world.size,
    )
    validation = Validation(
        held_out,
        context_length=T,
        batch_size=batch_size,
        tokens=settings.eval_tokens,
        document_mask=mask,
        position_range=settings.position_range,
        device=device,
        world=world,
    )

    # Model
    model = run.build_model(config, tokenizer.vocab_size)
    model.reset(config.seed)
    if origin:
        run.start_from(origin, model, tokenizer)
    model = model.to(device)
    optimizer, scaler = build_optimizer(model, config.optim), precision.scaler()
    state = checkpoint.State(data_hash=text.hash)
    if resumed:
        path = world.share(lambda: checkpoint.find(folder, "last"))
        saved = checkpoint.load_state(path)
        checkpoint.load_weights(model, path)
        optimizer.load_state_dict(saved.pop("optimizer"))
        scaler.load_state_dict(saved.pop("scaler"))
        state = checkpoint.State(**saved)
        if state.data_hash != text.hash:
            raise UserError(
                f"resume={folder}: the training text is not what it was; the run cannot go on"
            )
    else:
        world.share(lambda: run.create(folder, config, tokenizer))

    # Go
    said = [
        f"{folder}: {config.position['name']}, {sum(p.numel() for p in model.parameters()):,} parameters "
        f"({sum(p.numel() for p in model.schemes.parameters()):,} of them positions), "
        f"{device}{world}, {precision.name}",
        f"{len(text.tokens):,} training tokens, {settings.steps:,} steps of {batch_size * T:,}",
    ]
    with (
        tracker,
        MetricsFile(folder / "metrics.jsonl") if world.main else NoMetrics() as metrics,
        show("step", settings.steps, state.step) as progress,
    ):
        tracker.start(
            folder=folder,
            name=f"{folder.parent.name}/{folder.name}",
            group=run.group_name(folder),
            job_type="train",
            config=dataclasses.asdict(config),
            run_id=state.tracker_id,
        )
        state.tracker_id = tracker.run_id
        told = len(tracker.notes)
        for line in [*said, *tracker.notes]:
            progress.say(line)
        whole = world.wrap(model)
        compiled = torch.compile(whole) if config.compile else whole
        Loop(
            world, config, folder, model, compiled, optimizer, scaler, precision, loader, validation,
            metrics, tracker, progress, state,
        ).run()  # fmt: skip
    for line in tracker.notes[told:]:
        print(line)
    print(f"done: {folder}\nnext: python eval.py run={folder}", flush=True)


@dataclass
class Loop:
    world: World
    config: TrainConfig
    folder: Path
    model: Transformer
    compiled: Callable[..., torch.Tensor]  # the same model, as world and compiler want it
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    precision: Precision
    loader: Loader
    validation: Validation
    metrics: NoMetrics
    tracker: NoTracker
    progress: Lines
    state: checkpoint.State

    def run(self) -> None:
        settings, state = self.config.train, self.state
        began = time.monotonic() - state.seconds
        losses, since = [], time.monotonic()  # since the last logged step
        while state.step < settings.steps:
            loss, norm, lr = self.step(self.loader.batch(state.step))
            losses.append(loss)
            state.step += 1
            last = state.step == settings.steps
            numbers: dict[str, float] = {}
            if state.step % settings.log_every == 0 or last:
                numbers |= self.training_numbers(losses, norm, lr, time.monotonic() - since)
                losses = []
            if last or (settings.eval_every and state.step % settings.eval_every == 0):
                numbers |= self.validation.measure(self.model, self.precision)
            state.seconds = time.monotonic() - began
            if numbers:
                self.log(numbers)
            best = numbers.get("val/loss", math.inf) < state.best
            state.best = min(state.best, numbers.get("val/loss", math.inf))
            if best or last or (settings.save_every and state.step % settings.save_every == 0):
                self.save(best)
            if not losses:
                since = time.monotonic()

    def step(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, float]:
        """One step of the optimizer: mean loss (nats per token), norm of the gradient, learning rate.

        Parts and ranks are equal in size: the mean of their means is the mean over all tokens.
        """
        from torch.nn.utils import clip_grad_norm_

        from training.optim import learning_rate
        from training.positions import draw

        optim, settings = self.config.optim, self.config.train
        lr = learning_rate(self.state.step, settings.steps, optim)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        n, device, losses = settings.accumulate, self.precision.device, []
        parts = batch.tokens.to(device, non_blocking=True).chunk(n)
        pos = draw(
            settings.position_range, self.config.context_length, self.config.seed, self.state.step
        )
        pos = None if pos is None else pos.to(device)
        masks = [None] * n if batch.segments is None else batch.segments.to(device).chunk(n)
        for i, (tokens, segments) in enumerate(zip(parts, masks, strict=True)):
            with self.world.part(self.compiled, last=i == n - 1):
                with self.precision.autocast():
                    nats = self.compiled(tokens[:, :-1], tokens[:, 1:], segments=segments, pos=pos)
                    loss = nats.mean() / n
                self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        self.scaler.unscale_(self.optimizer)
        norm = clip_grad_norm_(self.model.parameters(), optim.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return self.world.mean(sum(losses[1:], losses[0])), norm, lr

    def training_numbers(
        self, losses: list[torch.Tensor], norm: torch.Tensor, lr: float, seconds: float
    ) -> dict[str, float]:
        tokens = len(losses) * self.config.train.batch_size * self.config.context_length
        mean = sum(loss.item() for loss in losses) / len(losses)
        if not math.isfinite(mean):
            raise UserError(
                f"{self.folder}: the loss is {mean} at step {self.state.step}; try a lower optim.lr"
            )
        return {
            "train/loss": mean,
            "train/grad_norm": norm.item(),
            "train/lr": lr,
            "train/tokens_per_second": tokens / seconds,
        }

    def log(self, numbers: dict[str, float]) -> None:
        from data.loader import batch_hash

        step, seconds = self.state.step, self.state.seconds
        tokens = step * self.config.train.batch_size * self.config.context_length
        batch = batch_hash(self.loader.whole(step - 1))
        self.metrics.log(numbers, step=step, tokens=tokens, seconds=seconds, batch=batch)
        self.tracker.log(numbers, step=step, tokens=tokens)
        names = {
            "train/loss": "loss {:.3f}",
            "train/tokens_per_second": "{:,.0f} tokens/s",
            "val/loss": "validation {:.3f}",
        }
        self.progress.update(
            step, "  ".join(form.format(numbers[k]) for k, form in names.items() if k in numbers)
        )

    def save(self, best: bool) -> None:
        from training import checkpoint

        if not self.world.main:
            return
        state: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            **dataclasses.asdict(self.state),
        }
        checkpoint.save(self.folder, self.state.step, self.model, state, best=best)
        checkpoint.prune(self.folder, self.config.train.keep)


main = command("train", TrainConfig, train)

if __name__ == "__main__":
    main()
