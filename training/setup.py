"""What a run is put together from: what its settings stand for, checked before any work, and then what learns."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from configs.check import build
from configs.schema import TrainConfig
from data.corpora import CORPORA
from data.corpus import Corpus
from data.tokenizer import TOKENIZERS
from errors import UserError
from model.transformer import Transformer
from training import checkpoint, cost, resume, run
from training.distributed import World
from training.feed import Feed
from training.optim import build_optimizer
from training.precision import Precision
from training.tracker import TRACKERS, NoTracker


@dataclass
class Tools:
    precision: Precision
    tracker: NoTracker
    corpus: Corpus
    spec: Any  # how to make the tokenizer: an entry of data/tokenizer.py's table


def choose_tools(config: TrainConfig, world: World) -> Tools:
    """UserError for everything that a setting can get wrong."""
    settings = config.train
    world.check_batch(settings.batch_size, settings.accumulate)
    device = world.device(config.device)
    tools = Tools(
        precision=Precision.choose(config.precision, device),
        tracker=build("tracker", TRACKERS, config.tracker) if world.main else NoTracker(),
        corpus=build("data", CORPORA, config.data),
        spec=build("tokenizer", TOKENIZERS, config.tokenizer),
    )
    cost.check_compile(config.compile, device)
    with torch.device("meta"):
        shape = run.build_model(config, vocab_size=257)
        shape.check_length(max(config.context_length, settings.position_range or 0))
        build_optimizer(shape, config.optim)
    if config.optim.warmup_steps >= settings.steps and world.main:
        warnings.warn(
            f"optim.warmup_steps={config.optim.warmup_steps} is not below train.steps={settings.steps}: "
            "the learning rate never reaches optim.lr",
            stacklevel=2,
        )
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = config.tf32
    return tools


@dataclass
class Learner:
    model: Transformer
    called: Callable[..., Tensor]  # the same model, as world and compiler want it
    compiled: bool
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    tokens: int  # a step, over all devices
    flops: int  # of the model, a step, over all devices


def open_learner(
    opened: resume.Opened, feed: Feed, precision: Precision, world: World, held: ExitStack
) -> tuple[Learner, checkpoint.State]:
    """A new run's, with its folder, or both as the checkpoint has them."""
    config, settings = opened.config, opened.config.train
    model = run.build_model(config, feed.tokenizer.vocab_size)
    model.reset(config.seed)
    model = model.to(precision.device)
    optimizer, scaler = build_optimizer(model, config.optim), precision.scaler()
    state = start(opened, model, optimizer, scaler, precision, feed, world, held)
    tokens = settings.batch_size * config.context_length
    flops = cost.flops_per_token(model, model.config) * tokens
    own = flops // world.size * settings.steps
    compiled = cost.compiles(config.compile, own, precision.device)
    called: Callable[..., Tensor] = world.wrap(model)
    if compiled:
        torch.compiler.reset()  # of a sweep's jobs before, past so many of which torch would quietly go without
        called = torch.compile(called, dynamic=False)
    return Learner(model, called, compiled, optimizer, scaler, tokens, flops), state


def start(
    opened: resume.Opened,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    precision: Precision,
    feed: Feed,
    world: World,
    held: ExitStack,
) -> checkpoint.State:
    """Everything as it was when the checkpoint was saved, or a new run's beginning and its folder.

    A new run is this command's alone until `held` ends.
    """
    if opened.path is None:
        if opened.origin:
            opened.notes += run.start_from(opened.origin, opened.config, model, feed.tokenizer)
        world.share(lambda: run.create(opened.folder, opened.config, feed.tokenizer, held))
        return checkpoint.State(feed.text.hash, precision.name, feed.held_out.hash)
    optimizer_state, scaler_state, state = checkpoint.load_state(opened.path)
    found = {
        "training": (state.data_hash, feed.text),
        "held-out": (state.held_out_hash, feed.held_out),
    }
    for kind, (hash, text) in found.items():
        if hash not in (None, text.hash):
            raise UserError(
                f"resume={opened.folder}: the {kind} text is not what it was; the run cannot go on"
            )
    state.held_out_hash = feed.held_out.hash
    checkpoint.load_weights(model, opened.path)
    checkpoint.load_optimizer(optimizer, optimizer_state, opened.path)
    if state.precision == precision.name:
        checkpoint.load_scaler(scaler, scaler_state, opened.path)
    else:  # precision=auto on another device
        opened.notes.append(f"precision is {precision.name}, no longer {state.precision}")
        state.precision = precision.name
    world.share(lambda: run.rewrite(opened.folder, opened.config))
    return state
