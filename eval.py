"""Measure trained runs at and beyond their context, on held-out text: python eval.py run=latest

Everything is rebuilt from the run folder alone: configuration, tokenizer, weights. Each row of results is
written as soon as it is there, and a row that is there is not computed again. Which tokens are scored is
evaluation/protocols.py's business.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.check import LONGEST, build, within
from configs.cli import command
from configs.schema import EvalConfig
from errors import UserError
from revision import revision

if TYPE_CHECKING:
    import numpy as np

    from data.prepare import TokenSplit
    from evaluation.protocols import Plan
    from model.transformer import Transformer
    from training.distributed import World
    from training.precision import Precision


CODE = ("eval.py", "model", "data", "training", "evaluation")  # what makes the numbers


def evaluate(config: EvalConfig, given: list[str], world: World) -> None:
    from training import run

    for folder in world.share(lambda: run.locate_all(config.run)):
        evaluate_run(folder, config, given, world)


def evaluate_run(folder: Path, config: EvalConfig, given: list[str], world: World) -> None:
    import torch

    from data.corpora import CORPORA
    from data.prepare import count_words, prepare_split
    from evaluation import results
    from evaluation.header import header, unusual
    from evaluation.terminal import show_rows
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
    settings = config.tracker if "tracker" in given else {**trained.tracker, **config.tracker}
    tracker = build("tracker", TRACKERS, settings)

    model = run.build_model(dataclasses.replace(trained, position=position), tokenizer.vocab_size)
    checkpoint.load_weights(model, path)
    model = model.to(device).eval()
    corpus = build("data", CORPORA, trained.data)
    split = world.first(lambda: prepare_split(corpus, config.split, tokenizer))
    world.same(f"the text in data.{config.split}", split.hash)
    about = header(
        label(trained.position, position, given, unusual(config, precision.name)),
        position,
        trained,
        config,
        model,
        checkpoint_step=checkpoint.step_of(path),
        precision=precision.name,
        data_hash=split.hash,
        tokenizer_hash=tokenizer.hash,
        torch=torch.__version__,
        commit=revision(*CODE),
    )
    file = folder / "eval" / f"{about['label']}.json"
    plans = make_plans(config, trained.context_length, split)
    counted = corpus.words and any(plan.whole for plan in plans)
    words = count_words(split, tokenizer) if counted else None
    reach = trained.train.position_range
    measure(
        file,
        about,
        plans,
        model,
        split,
        words,
        config.eval.tokens_per_batch,
        precision,
        reach,
        world,
    )
    if not world.main:
        return

    rows = results.rows_of(results.load(file).rows, plans)
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
    show_rows(rows, trained.context_length)
    for line in tracker.notes:
        print(line)
    print(f"done: {file}\nnext: python compare.py 'runs=[outputs/*/*]'")


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


def measure(
    file: Path,
    header: dict[str, Any],
    plans: list[Plan],
    model: Transformer,
    split: TokenSplit,
    words: np.ndarray | None,
    tokens_per_batch: int,
    precision: Precision,
    position_range: int | None,
    world: World,
) -> None:
    """Score the plans that `file` does not hold yet, and write each as soon as it is scored.

    position_range: of the training; windows get positions drawn from it too, the same for all windows of a length.
    """
    from evaluation import results
    from evaluation.scoring import score
    from training.positions import HELD_OUT, draw
    from training.progress import show

    there = results.missing(file, header, plans) if world.main else []
    wanted = world.share(lambda: [any(p is plan for p in there) for plan in plans])
    missing = [plan for plan, asked in zip(plans, wanted, strict=True) if asked]
    limit = min(model.max_length or math.inf, position_range or math.inf)
    supported = [p for p in missing if p.context_length <= limit]
    total = sum(p.input_tokens for p in supported)
    print(
        f"{file}: {len(plans)} measurements, {len(plans) - len(missing)} there already, "
        f"{total:,} tokens to read"
    )
    done = 0
    with show("tokens", total) as progress:
        for plan in missing:

            def nats(inputs, targets, window=plan.window):
                pos = draw(position_range, inputs.shape[1], HELD_OUT)
                pos = None if pos is None else pos.to(inputs.device)
                with precision.autocast():
                    return model(inputs, targets, window=window, pos=pos)

            def tick(read, plan=plan, before=done):
                read = min(read * world.size, plan.input_tokens)
                progress.update(before + read, f"{plan.protocol} at {plan.context_length:,}")

            scores = None
            if plan in supported:
                scores = score(
                    nats,
                    split,
                    plan,
                    tokens_per_batch=tokens_per_batch,
                    device=precision.device,
                    progress=tick,
                    rank=world.rank,
                    world=world.size,
                    gather=world.gather,
                )
                done += plan.input_tokens
            if world.main:
                results.save(file.parent, header, results.make_rows(plan, scores, words))


main = command("eval", EvalConfig, evaluate)

if __name__ == "__main__":
    main()
