"""Train one language model: python train.py position=rope

Read top to bottom: `train_run` puts the pieces together, `Loop.run` is the loop, `Loop.step` one step of the
optimizer. The loop keeps nothing that a checkpoint does not: which tokens step n sees and how fast it learns
are pure functions of n, and nothing draws from a global random generator. Heavy imports wait inside,
so that `--help` and a mistyped key answer at once.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from configs.cli import command
from configs.schema import TrainConfig
from training.signals import Stop

if TYPE_CHECKING:
    import torch

    from data.loader import Ahead, Batch
    from training.checkpoint import State
    from training.distributed import World
    from training.guard import Guard
    from training.journal import Journal
    from training.precision import Precision
    from training.resume import Opened
    from training.saving import Saver
    from training.setup import Learner
    from training.validation import Validation


def train(config: TrainConfig, given: list[str], world: World) -> None:
    from training import resume, run

    with Stop(world) as stop, ExitStack() as held:
        # Which run: a new one, or one that goes on in its own folder with its own configuration
        opened = world.share(lambda: resume.open_run(config, given, run.output_folder(), held))
        if opened is not None:
            train_run(opened, world, stop, held)


def train_run(opened: Opened, world: World, stop: Stop, held: ExitStack) -> None:
    from data.loader import Ahead
    from runs.find import override
    from training import cost, run
    from training.feed import open_feed
    from training.guard import Guard
    from training.journal import Journal
    from training.metrics import open_metrics
    from training.progress import show
    from training.saving import Saver
    from training.setup import choose_tools, open_learner

    folder, config = opened.folder, opened.config
    tools = choose_tools(config, world)  # what a setting can get wrong shows here, before any work
    precision = tools.precision
    feed = open_feed(opened, tools.corpus, tools.spec, precision.device, world)
    learner, state = open_learner(opened, feed, precision, world, held)
    steps = config.train.steps
    with (
        tools.tracker as tracker,
        open_metrics(folder, state.attempt, world.main) as metrics,
        show("step", steps, state.step) as progress,
        Ahead(feed.loader, pinned=precision.device.type == "cuda") as batches,
    ):
        tracker.start(
            folder=folder,
            name=f"{folder.parent.name}/{folder.name}",
            group=run.group_name(folder),
            job_type="train",
            config=dataclasses.asdict(config),
            run_id=state.tracker_id,
        )
        state.tracker_id, state.attempt, told = tracker.run_id, metrics.attempt, len(tracker.notes)
        sizes = run.describe(folder, config, learner.model, feed.text)
        where = f"on {precision.device}{world} in {precision.name}{', compiled' * learner.compiled}"
        for line in [*sizes, where, *opened.notes, *tracker.notes]:
            progress.say(line)
        ideal = learner.flops / world.size / cost.ceiling(precision)
        saver = Saver(
            folder,
            config,
            feed.tokenizer,
            learner.model,
            learner.optimizer,
            learner.scaler,
            opened.path,
        )
        with stop.deferred():
            Loop(
                world=world,
                config=config,
                learner=learner,
                state=state,
                precision=precision,
                batches=batches,
                validation=feed.validation,
                guard=Guard(precision, state.skips),
                journal=Journal(metrics, tracker, progress, state, learner.tokens, ideal),
                saver=saver,
                stop=stop,
            ).run()
            stop.otherwise = f"{folder} is saved at step {state.step}"
    for line in tracker.notes[told:]:
        print(line)
    if state.step < steps:
        stop.leave(
            f"saved at step {state.step}\nnext: python train.py {override('resume', folder)}"
        )
    print(f"done: {folder}\nnext: python eval.py {override('run', folder)}", flush=True)
    stop.leave("it came as the run was complete")


@dataclass
class Loop:
    world: World
    config: TrainConfig
    learner: Learner
    state: State
    precision: Precision
    batches: Ahead
    validation: Validation
    guard: Guard
    journal: Journal
    saver: Saver
    stop: Stop

    def run(self) -> None:
        """Take all steps, or those until somebody asks to stop; save the last one either way."""
        settings, state, journal = self.config.train, self.state, self.journal
        stop = False
        while state.step < settings.steps and not stop:
            loss, norm, lr = self.step(self.batches.batch(state.step))
            journal.losses.append(loss)
            state.step += 1
            log, measure = self.due(settings.log_every), self.due(settings.eval_every)
            if log or measure or self.precision.device.type == "cpu":  # a GPU would wait each time
                self.check()
            numbers: dict[str, float] = {}
            if log:
                numbers |= journal.training(norm, lr)
            if log and self.learner.scaler.is_enabled():
                numbers["train/skipped"] = state.skips[0]
            if measure:
                numbers |= self.validation.measure(self.learner.model, self.precision)
            if numbers:
                journal.log(numbers, partial(self.batches.loader.whole, state.step - 1))
            if best := numbers.get("val/loss", math.inf) < state.best:
                state.best, state.best_step = numbers["val/loss"], state.step
            stop = self.stop.agreed()
            if save := best or stop or self.due(settings.save_every):
                self.save()
            if log or measure or save:
                journal.mark()

    def due(self, every: int) -> bool:
        step = self.state.step
        return step == self.config.train.steps or bool(every and step % every == 0)

    def check(self) -> None:
        """Stop here if numbers have gone wrong."""
        self.state.skips = self.guard.check(self.learner.scaler, self.saver.said())

    def save(self) -> None:
        self.check()
        self.journal.sync()  # first: a checkpoint knows of no step whose numbers could still get lost
        self.saver.newest = self.world.share(lambda: self.saver.save(self.state))

    def step(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, float]:
        """One step of the optimizer: mean loss (nats per token), norm of the gradient, learning rate."""
        from torch.nn.utils import clip_grad_norm_

        from training.optim import learning_rate
        from training.positions import draw

        optim, settings = self.config.optim, self.config.train
        model, optimizer, scaler = self.learner.called, self.learner.optimizer, self.learner.scaler
        lr = learning_rate(self.state.step, settings.steps, optim)
        for group in optimizer.param_groups:
            group["lr"] = lr
        device, losses = self.precision.device, []
        parts = batch.chunk(settings.accumulate)
        reach = settings.position_range
        pos = draw(reach, self.config.context_length, self.config.seed, self.state.step)
        pos = None if pos is None else pos.to(device, non_blocking=True)
        for part, share in zip(parts, shares(parts, self.world), strict=True):
            part = part.to(device)
            inputs, targets, documents = part.inputs, part.targets, part.documents
            with self.world.part(model, last=len(losses) == len(parts) - 1):
                with self.precision.autocast():
                    loss = model(inputs, targets, mean=True, segments=documents, pos=pos) / share
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        loss = self.world.mean(sum(losses[1:], losses[0]))
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(self.learner.model.parameters(), optim.clip)
        broken = self.guard.see(self.state.step + 1, loss, norm)
        optimizer.found_inf = broken  # type: ignore  # 1.0: AdamW leaves everything as it is
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss, norm, lr


def shares(parts: list[Batch], world: World) -> list[float]:
    """What divides the mean loss of each part, so that the mean over ranks of their sum is the mean over all
    targets of the step: len(parts), unless borders of documents leave fewer targets in some than in others.
    """
    if parts[0].segments is None:
        return [len(parts)] * len(parts)
    counts = [int((part.targets >= 0).sum()) for part in parts]
    total = world.total(sum(counts))[0] / world.size
    return [total / count for count in counts]


main = command("train", TrainConfig, train)

if __name__ == "__main__":
    main()
