"""Measure trained runs at and beyond their context, on held-out text: python eval.py run=latest

Everything is rebuilt from the run folder alone: configuration, tokenizer, weights. Each row of results is
written as soon as it is there, and a row that is there is not computed again. Which tokens are scored is
evaluation/protocols.py's business.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.check import LONGEST, build, within
from configs.cli import command
from configs.schema import EvalConfig, TrainConfig
from errors import UserError

if TYPE_CHECKING:
    from data.prepare import TokenSplit
    from evaluation.protocols import Plan
    from model.transformer import Transformer
    from training.precision import Precision


def evaluate(config: EvalConfig, given: list[str]) -> None:
    from training import run

    for folder in run.locate_all(config.run):
        evaluate_run(folder, run.load_config(folder), config, given)


def evaluate_run(folder: Path, trained: TrainConfig, config: EvalConfig, given: list[str]) -> None:
    from data.corpora import CORPORA
    from data.prepare import prepare_split
    from data.tokenizer import Tokenizer
    from evaluation import results
    from training import checkpoint, run
    from training.precision import Precision, choose_device
    from training.rescale import evaluated_position, label
    from training.tracker import TRACKERS

    # Everything that a setting can get wrong, before any work
    device = choose_device(config.device)
    precision = Precision.choose(config.precision, device)
    position = evaluated_position(trained, config.position, given)
    settings = config.tracker if "tracker" in given else {**trained.tracker, **config.tracker}
    tracker = build("tracker", TRACKERS, settings)
    path = checkpoint.find(folder, config.checkpoint)

    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    model = run.build_model(dataclasses.replace(trained, position=position), tokenizer.vocab_size)
    checkpoint.load_weights(model, path)
    model = model.to(device).eval()
    split = prepare_split(build("data", CORPORA, trained.data), config.split, tokenizer)
    header = {
        "label": label(trained.position, position, given, unusual(config, precision.name)),
        "position": position["name"],
        "position_settings": position,
        "trained_position": trained.position["name"],
        "trained_context": trained.context_length,
        "checkpoint_step": checkpoint.step_of(path),
        "seed": trained.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": trained.data["name"],
        "split": config.split,
        "precision": precision.name,
        "data_hash": split.hash,
        "tokenizer_hash": tokenizer.hash,
        **environment(),
    }
    file = folder / "eval" / f"{header['label']}.json"
    plans = make_plans(config, trained.context_length, split)
    reach = trained.train.position_range
    measure(file, header, plans, model, split, config.eval.tokens_per_batch, precision, reach)

    rows = results.rows_of(results.load(file).rows, plans)
    with tracker:
        tracker.start(
            folder=folder,
            name=f"{folder.parent.name}/{folder.name} eval {header['label']}",
            group=run.group_name(folder),
            job_type="eval",
            config={**dataclasses.asdict(trained), "evaluation": header},
            run_id=None,
        )
        tracker.log_evaluation(rows)
    show_rows(rows, trained.context_length)
    for line in tracker.notes:
        print(line)
    print(f"done: {file}\nnext: python compare.py 'runs=[outputs/*/*]'")


def unusual(config: EvalConfig, precision: str) -> dict[str, str]:
    """What belongs into a label, since it makes other numbers: anything but the last checkpoint on the test split."""
    usual = {"split": "test", "checkpoint": "last", "precision": "fp32"}
    mine = {"split": config.split, "checkpoint": config.checkpoint, "precision": precision}
    return {key: value for key, value in mine.items() if value != usual[key]}


def environment() -> dict[str, str | None]:
    """Which code runs: torch's version, git's commit, behind a "+" a digest of code that is not the commit's."""
    import torch

    from storage import digest

    root = Path(__file__).parent
    parts = ["eval.py", "model", "data", "training", "evaluation"]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
        except OSError:  # no git on this machine
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit or git("status", "--porcelain", "--", *parts):
        files = sorted(f for part in parts for f in [root / part, *(root / part).rglob("*.py")])
        code = "".join(digest(f) for f in files if f.is_file())
        commit = f"{commit or ''}+{hashlib.sha256(code.encode()).hexdigest()[:8]}"
    return {"torch": torch.__version__, "commit": commit}


def make_plans(config: EvalConfig, trained_context: int, split: TokenSplit) -> list[Plan]:
    """Every protocol at every length, shortest first."""
    from evaluation.protocols import plan
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
    if config.window is not None:
        within("window", config.window, 1, LONGEST)
    plans = [
        plan(
            protocol,
            document_lengths(split),
            length,
            longest=lengths[-1],
            targets=settings.targets,
            block=settings.block,
            stride=settings.stride or max(1, length // 2),
        )
        for protocol in dict.fromkeys(config.protocols)
        for length in lengths
    ]
    return [dataclasses.replace(p, window=config.window) for p in plans]


def measure(
    file: Path,
    header: dict[str, Any],
    plans: list[Plan],
    model: Transformer,
    split: TokenSplit,
    tokens_per_batch: int,
    precision: Precision,
    position_range: int | None,
) -> None:
    """Score the plans that `file` does not hold yet, and write each as soon as it is scored.

    position_range: of the training; windows get positions drawn from it too, the same for all windows of a length.
    """
    from evaluation import results
    from evaluation.scoring import score
    from training.positions import HELD_OUT, draw
    from training.progress import show

    missing = results.missing(file, header, plans)
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

            def tick(read, text=f"{plan.protocol} at {plan.context_length:,}", before=done):
                progress.update(before + read, text)

            scores = None
            if plan in supported:
                scores = score(
                    nats,
                    split,
                    plan,
                    tokens_per_batch=tokens_per_batch,
                    device=precision.device,
                    progress=tick,
                )
                done += plan.input_tokens
            results.save(file.parent, header, results.make_rows(plan, scores))


def show_rows(rows: list[dict[str, Any]], trained_context: int) -> None:
    """The rows on the terminal, a table for each protocol."""
    from rich.console import Console
    from rich.table import Table

    for protocol in dict.fromkeys(row["protocol"] for row in rows):
        table = Table(title=f"{protocol}, trained at {trained_context:,} tokens")
        for name in ("context", "perplexity", "loss", "95 % interval", "bits/byte", "tokens"):
            table.add_column(name, justify="right")
        for row in rows:
            if row["protocol"] == protocol:
                table.add_row(*cells(row))
        Console().print(table)
    print("The intervals are about this checkpoint on this text, not about its position scheme.")


def cells(row: dict[str, Any]) -> list[str]:
    where = [f"{row['context_length']:,}", row["bin"], row["window"] and f"window {row['window']}"]
    place = " ".join(part for part in where if part)
    if not row["supported"]:
        return [place, "unsupported"]
    forms = {"ppl": "{:.2f}", "loss": "{:.4f}", "ci95": "{0[0]:.4f} to {0[1]:.4f}", "bpb": "{:.4f}"}
    numbers = [f.format(row[k]) if row[k] is not None else "–" for k, f in forms.items()]
    return [place, *numbers, f"{row['tokens_scored']:,}"]


main = command("eval", EvalConfig, evaluate)

if __name__ == "__main__":
    main()
