"""Checkpoints: folders that appear complete or not at all.

    checkpoints/step-000500/model.safetensors   weights, under the model's own names
                            state.pt            optimizer, loss scaler, counters; loads with weights_only=True
                            manifest.json       size and sha256 of both
    checkpoints/last, checkpoints/best          small text files that name a folder

A folder is written under a temporary name, flushed to disk and renamed. Nothing in it is ever executed.
"""

import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from errors import UserError
from storage import digest, flush, replace_text


@dataclass
class State:
    """What changes as a run goes on, besides weights and the optimizer's own state."""

    data_hash: str  # of the training tokens
    step: int = 0  # steps taken
    seconds: float = 0.0  # spent on them, validation and checkpoints included
    best: float = math.inf  # lowest val/loss so far
    tracker_id: str | None = None


def save(folder: Path, step: int, model: nn.Module, state: dict[str, Any], *, best: bool) -> None:
    """Write checkpoint `step` into the run `folder`; it becomes `last`, and `best` if said so."""
    root = folder / "checkpoints"
    target = root / f"step-{step:06d}"
    if not (target / "manifest.json").exists():
        draft = root / f".draft-{target.name}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(weights(model), draft / "model.safetensors", metadata={"format": "pt"})
        torch.save(state, draft / "state.pt")
        files = {p.name: {"bytes": p.stat().st_size, "sha256": digest(p)} for p in draft.iterdir()}
        (draft / "manifest.json").write_text(json.dumps(files, indent=1))
        for path in (*draft.iterdir(), draft):
            flush(path)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(draft, target)
    for pointer in ("last", "best") if best else ("last",):
        replace_text(root / pointer, target.name)
    flush(root)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of the model without any wrapper's prefix and without second names of one tensor (tied embeddings)."""
    state, seen = {}, set()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen:
            state[name] = tensor.detach().cpu().contiguous()
            seen.add(tensor.data_ptr())
    return state


def load_weights(model: nn.Module, path: Path, own_schemes: bool = False) -> None:
    """Every weight of the model from the checkpoint folder `path`, and nothing left over.

    own_schemes: parameters of position schemes are taken where they fit and may otherwise differ.
    """
    verify(path)
    own, stored = weights(model), load_file(path / "model.safetensors")
    if own_schemes:
        fits = {n for n in own.keys() & stored.keys() if own[n].shape == stored[n].shape}
        free = {n for n in own.keys() | stored.keys() if n.startswith("schemes.")} - fits
        own, stored = ({n: x for n, x in s.items() if n not in free} for s in (own, stored))
    for name in sorted(own.keys() | stored.keys()):
        shapes = [tuple(s[name].shape) if name in s else "missing" for s in (own, stored)]
        if shapes[0] != shapes[1]:
            raise UserError(f"{path} does not fit: {name} is {shapes[1]}, the model's {shapes[0]}")
    model.load_state_dict(stored, strict=False)


def load_state(path: Path) -> dict[str, Any]:
    verify(path)
    return torch.load(path / "state.pt", map_location="cpu", weights_only=True)


def find(folder: Path, which: str) -> Path:
    """The checkpoint folder that `last`, `best` or a step number stands for, in the run `folder`."""
    root = folder / "checkpoints"
    if which in ("last", "best"):
        pointer = root / which
        if not pointer.exists():
            raise UserError(f"{folder} has no checkpoint `{which}`: nothing was saved there yet")
        return root / pointer.read_text().strip()
    path = root / f"step-{int(which):06d}" if which.isdigit() else None
    if path is None or not path.exists():
        there = sorted(p.name for p in root.glob("step-*"))
        raise UserError(f"checkpoint={which}: {root} has last, best, {', '.join(there)}")
    return path


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def prune(folder: Path, keep: int) -> None:
    """Delete all checkpoints but the newest `keep` and the best."""
    root = folder / "checkpoints"
    kept = {(root / p).read_text().strip() for p in ("last", "best") if (root / p).exists()}
    for path in sorted(root.glob("step-*"), key=step_of)[: -max(1, keep)]:
        if path.name not in kept:
            shutil.rmtree(path)


def verify(path: Path) -> None:
    """UserError if a file of the checkpoint is missing or is not what was written."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        for name, known in manifest.items():
            if digest(path / name) != known["sha256"]:
                raise UserError(f"{path / name} is damaged: its sha256 is not the manifest's")
    except (OSError, json.JSONDecodeError, TypeError, KeyError) as error:
        raise UserError(f"{path} is no complete checkpoint: {error}") from None
