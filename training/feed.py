"""What a run reads: its tokenizer, its training text in batches, its held-out text."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from data.corpus import Corpus
from data.loader import Loader
from data.prepare import TokenSplit, prepare_split, prepare_tokenizer
from data.tokenizer import Tokenizer
from training import run
from training.distributed import World
from training.resume import Opened
from training.validation import Validation


@dataclass
class Feed:
    tokenizer: Tokenizer
    text: TokenSplit
    held_out: TokenSplit
    loader: Loader  # of the text, this process's rows
    validation: Validation


def open_feed(
    opened: Opened, corpus: Corpus, spec: Any, device: torch.device, world: World
) -> Feed:
    """From the corpus, prepared once and kept; a run that goes on has its tokenizer in its checkpoint.

    spec: how to make the tokenizer (an entry of data/tokenizer.py's table).
    """
    config, path = opened.config, opened.path
    settings = config.train
    tokenizer = world.first(
        lambda: run.open_tokenizer(opened.folder, path) if path else prepare_tokenizer(corpus, spec)
    )
    text, held_out = (
        world.first(partial(prepare_split, corpus, split, tokenizer))
        for split in ("train", "validation")
    )
    world.same("the text in data.train and data.validation", (text.hash, held_out.hash))
    loader = Loader(
        text,
        context_length=config.context_length,
        batch_size=settings.batch_size,
        seed=config.seed,
        document_mask=corpus.document_mask,
        rank=world.rank,
        world=world.size,
    )
    validation = Validation(
        held_out,
        context_length=config.context_length,
        tokens=settings.eval_tokens,
        document_mask=corpus.document_mask,
        position_range=settings.position_range,
        rows=settings.batch_size // settings.accumulate // world.size,
        device=device,
        world=world,
    )
    return Feed(tokenizer, text, held_out, loader, validation)
