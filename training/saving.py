"""Checkpoints as they are written: under another name, flushed to the disk, renamed (checkpoint.py reads them).

Whatever goes wrong on the way (a full disk, a second Ctrl-C, a power failure), the checkpoints of before are
untouched. What is not finite is never saved.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from configs.schema import TrainConfig
from data.tokenizer import Tokenizer
from errors import UserError
from runs.config import config_text
from runs.find import self_contained
from storage import digest, flush, replace_text, writing
from training.checkpoint import State, step_of, steps, weights

# By a process that was killed: nothing else in a user's folder is ours to delete
LEFT_BEHIND = re.compile(r"\.(draft|old)-step-[0-9]{6,}|\.(last|best)\.[0-9]+\.draft")
Writers = dict[str, Callable[[Path], object]]  # file name -> writes it


@dataclass
class Saver:
    """Saves one run; UserError, and the folder as it was, where that cannot be done."""

    folder: Path
    config: TrainConfig
    tokenizer: Tokenizer
    model: nn.Module  # wrapped or not
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    newest: Path | None  # the checkpoint saved last, or the one that the run goes on from

    def save(self, state: State) -> Path:
        """The checkpoint's folder."""
        tensors, optimizer = weights(self.model), self.optimizer.state_dict()
        if not all_finite([tensors, optimizer["state"]]):
            raise UserError(
                f"step {state.step}: a weight is not finite, so nothing was saved; {self.said()}."
                " Most likely optim.lr is too high: try a lower one"
            )
        parts = {"optimizer": optimizer, "scaler": self.scaler.state_dict(), **asdict(state)}
        config = config_text(self.config).encode()
        root = self_contained(self.folder) / "checkpoints"
        target = root / f"step-{state.step:06d}"
        writers: Writers = {
            "model.safetensors": lambda path: save_file(tensors, path, metadata={"format": "pt"}),
            "state.pt": lambda path: write_state(parts, path),
            "config.yaml": lambda path: path.write_bytes(config),
            "tokenizer.json": self.tokenizer.save,
        }
        write_folder(target, writers)
        for pointer, step in (("last", state.step), ("best", state.best_step)):
            if step is not None:
                replace_text(root / pointer, f"step-{step:06d}")
        prune(root, state, self.config.train.keep)
        return target

    def said(self) -> str:
        if self.newest is None:
            return "no checkpoint was saved before"
        return f"the last good checkpoint is {self.newest}"


def write_state(parts: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # ours, so that an error of the disk says what it is
        torch.save(parts, file)


def write_folder(target: Path, writers: Writers) -> None:
    """`target` with what each writer makes and a manifest: all of it or, after a UserError, as it was."""
    draft, old = (target.with_name(f".{kind}-{target.name}") for kind in ("draft", "old"))
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        for path in target.parent.iterdir():
            if LEFT_BEHIND.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        draft.mkdir()
    try:
        manifest = {}
        for name, write in writers.items():
            with writing(draft / name):
                write(draft / name)
                flush(draft / name)
                size = (draft / name).stat().st_size
                manifest[name] = {"bytes": size, "sha256": digest(draft / name)}
        with writing(draft / "manifest.json"):
            (draft / "manifest.json").write_text(json.dumps(manifest, indent=1))
            flush(draft / "manifest.json")
            flush(draft)
        with writing(target):
            if target.exists():  # damaged, and now written again
                os.replace(target, old)
            os.replace(draft, target)
            flush(target.parent)
    finally:
        if old.exists() and not target.exists():
            os.replace(old, target)
        for path in (draft, old):
            shutil.rmtree(path, ignore_errors=True)


def prune(root: Path, state: State, keep: int) -> None:
    """Delete all checkpoints but the newest `keep`, the best, and damaged ones that are yet to be written again."""
    old = [path for path in steps(root) if step_of(path) <= state.step]
    for path in old[: -max(1, keep)]:
        if step_of(path) != state.best_step:
            shutil.rmtree(path)


def all_finite(tree: Any) -> bool:
    """Whether every number in the tensors of nested lists and dicts is finite; one wait for the device."""
    found = [tensor.isfinite().all() for tensor in leaves(tree)]
    return not found or bool(torch.stack([f.to(found[0].device) for f in found]).all())


def leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
