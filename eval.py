"""Measure trained runs at and beyond their context, on held-out text: python eval.py run=latest

Everything is rebuilt from the run folder alone: configuration, tokenizer, weights. Each row of results is
written as soon as it is there, and a row that is there is not computed again. Which tokens are scored is
evaluation/protocols.py's business.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.check import LONGEST, build, within
from configs.cli import command
from configs.refusals import plain
from configs.schema import EvalConfig, TrainConfig
from errors import UserError
from revision import revision

if TYPE_CHECKING:
    import numpy as np
    import torch

    from data.prepare import TokenSplit
    from evaluation.protocols import Plan, Scores
    from model.transformer import Transformer
    from training.distributed import World
    from training.precision import Precision
    from training.tracker import NoTracker


SOURCES = ("eval.py", "model", "data", "runs", "training", "evaluation")  # what makes the numbers


def evaluate(config: EvalConfig, given: list[str], world: World) -> None:
    from runs.find import find_runs

    for folder in world.share(lambda: find_runs(config.run)):
        evaluate_run(folder, config, given, world)


def evaluate_run(folder: Path, config: EvalConfig, given: list[str], world: World) -> None:
    import torch

    from data.corpora import CORPORA
    from data.prepare import count_words, prepare_split
    from evaluation import results
    from evaluation.header import header, unusual
    from evaluation.terminal import show_rows
    from runs.find import outside
    from training import checkpoint, run
    from training.precision import Precision
    from training.rescale import evaluated_position, label
    from training.tracker import TRACKERS

    # Everything that a setting can get wrong, before any work
    path = world.share(lambda: checkpoint.find(folder, config.checkpoint))
    trained, tokenizer = run.open_checkpoint(folder, path)
    device = world.device(config.device)
    precision = Precision.choose(config.precision, device)
    position = evaluated_position(trained, config.position, given)
    name = label(trained.position, position, given, unusual(config, precision.name))
    tracker = build("tracker", TRACKERS, own_tracker(config.tracker, trained.tracker, given))
    data = {**trained.data, **config.data}

    model = run.build_model(dataclasses.replace(trained, position=position), tokenizer.vocab_size)
    checkpoint.load_weights(model, path)
    model = model.to(device).eval()
    corpus = build("data", CORPORA, data)
    if config.eval.bos and corpus.document_mask:
        raise UserError(
            f"eval.bos=true: {folder} was trained with data.document_mask=true, no document began with end-of-text"
        )
    if away := outside(data.values()):
        print(f"{folder} names paths outside the working directory: {plain(', '.join(away))}")
    split = world.first(lambda: prepare_split(corpus, config.split, tokenizer))
    world.same(f"the text in data.{config.split}", split.hash)
    about = header(
        name,
        position,
        trained,
        config,
        model,
        checkpoint_step=checkpoint.step_of(path),
        precision=precision.name,
        data_hash=split.hash,
        tokenizer_hash=tokenizer.hash,
        torch=str(torch.__version__),
        commit=revision(*SOURCES),
    )
    file = folder / "eval" / f"{about['label']}.json"
    plans = make_plans(config, trained.context_length, split)
    counted = corpus.words and any(plan.whole for plan in plans)
    words = count_words(split, tokenizer) if counted else None
    reach = trained.train.position_range
    reader = Reader(model, split, precision, reach, config.eval.tokens_per_batch, world)
    measure(file, about, plans, reader, words)
    if world.main:
        rows = results.rows_of(results.load(file).rows, plans)
        track(tracker, folder, trained, about, rows)
        show_rows(rows, trained.context_length)
        for line in tracker.notes:
            print(line)
        print(f"done: {file}\nnext: python compare.py 'runs=[outputs/*/*]'")


def own_tracker(asked: dict[str, Any], run: dict[str, Any], given: list[str]) -> dict[str, Any]:
    """The tracker of who evaluates. A run, perhaps somebody else's, may keep it offline or off, and no more."""
    chosen = any(key.split(".")[0] == "tracker" for key in given)
    if (asked if chosen else run).get("name") == "none":
        return {"name": "none"}
    if chosen:
        return asked
    theirs = [f"tracker.{k}={run[k]}" for k in ("project", "entity") if run.get(k) != asked.get(k)]
    if theirs:
        print(f"tracked in your own project; the run's is {plain(' '.join(theirs))}")
    return asked | {"mode": run["mode"]} if run.get("mode") in ("offline", "disabled") else asked


def track(
    tracker: NoTracker,
    folder: Path,
    trained: TrainConfig,
    about: dict[str, Any],
    rows: list[dict[str, Any]],
) -> None:
    from training import run

    with tracker:
        tracker.start(
            folder=folder,
            name=f"{folder.parent.name}/{folder.name} eval {about['label']}",
            group=run.group_name(folder),
            job_type="eval",
            config={**dataclasses.asdict(trained), "evaluation": about},
            run_id=None,
        )
        tracker.log_evaluation(rows)


def make_plans(config: EvalConfig, trained_context: int, split: TokenSplit) -> list[Plan]:
    """Every protocol at every length, shortest first, under every attention window."""
    from evaluation.protocols import attention_windows, plan, under_windows
    from evaluation.scoring import document_lengths

    settings = config.eval
    lengths = config.lengths
    if lengths is None:  # a context too short for a block is left out where nobody asked for it
        lengths = [round(m * trained_context) for m in settings.multiples]
        lengths = [n for n in lengths if n >= min(settings.block, trained_context)]
    lengths = sorted(set(lengths))
    if not lengths or not 1 <= lengths[0] <= lengths[-1] <= LONGEST:
        raise UserError(
            f"lengths={lengths} (or eval.multiples of the trained context): name some, from 1 to {LONGEST}"
        )
    for key in ("targets", "block", "tokens_per_batch"):
        within(f"eval.{key}", getattr(settings, key), 1, LONGEST)
    if settings.stride is not None:
        within("eval.stride", settings.stride, 1, LONGEST)
    windows = attention_windows(config.windows, trained_context)
    plans = [
        plan(
            protocol,
            document_lengths(split),
            length,
            longest=lengths[-1],
            targets=settings.targets,
            block=settings.block,
            stride=settings.stride or max(1, length // 2),
            bos=settings.bos,
        )
        for protocol in dict.fromkeys(config.protocols)
        for length in lengths
    ]
    if not (found := under_windows(plans, windows)):
        raise UserError(f"windows={config.windows}: no length is longer; windows=[full] measures")
    return found


@dataclass
class Reader:
    """A model and the text that it reads."""

    model: Transformer
    split: TokenSplit
    precision: Precision
    position_range: (
        int | None
    )  # of the training: every window gets positions drawn from it, all of a length the same
    tokens_per_batch: int
    world: World

    def supports(self, plan: Plan) -> bool:
        limit = min(self.model.max_length or math.inf, self.position_range or math.inf)
        return plan.context_length <= limit

    def score(self, plan: Plan, read: Callable[[int], None]) -> Scores:
        """read: told how many tokens were read."""
        from evaluation.scoring import score

        world = self.world
        return score(
            partial(self.nats, plan.window),
            self.split,
            plan,
            tokens_per_batch=self.tokens_per_batch,
            device=self.precision.device,
            progress=lambda n: read(min(n * world.size, plan.input_tokens)),
            rank=world.rank,
            world=world.size,
            gather=world.gather,
        )

    def nats(self, window: int | None, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        from training.positions import HELD_OUT, draw

        pos = draw(self.position_range, inputs.shape[1], HELD_OUT)
        pos = None if pos is None else pos.to(inputs.device)
        with self.precision.autocast():
            return self.model(inputs, targets, window=window, pos=pos)


def measure(
    file: Path, about: dict[str, Any], plans: list[Plan], reader: Reader, words: np.ndarray | None
) -> None:
    """Score the plans that `file` does not hold yet, and write each as soon as it is scored."""
    from evaluation import results
    from training.progress import show

    world = reader.world
    there = results.missing(file, about, plans) if world.main else []
    for line in results.leaving(file, about, plans) if world.main else []:
        print(line)
    wanted = world.share(lambda: [any(p is plan for p in there) for plan in plans])
    missing = [plan for plan, asked in zip(plans, wanted, strict=True) if asked]
    total = sum(plan.input_tokens for plan in missing if reader.supports(plan))
    print(
        f"{file}: {len(plans)} measurements, {len(plans) - len(missing)} there already, "
        f"{total:,} tokens to read"
    )
    done = 0
    with show("tokens", total) as progress:
        for plan in missing:
            scores = None
            if reader.supports(plan):
                name = f"{plan.protocol} at {plan.context_length:,}"
                scores = reader.score(
                    plan, lambda n, at=done, name=name: progress.update(at + n, name)
                )
                done += plan.input_tokens
            if world.main:
                results.save(file.parent, about, results.make_rows(plan, scores, words))


main = command("eval", EvalConfig, evaluate)

if __name__ == "__main__":
    main()
