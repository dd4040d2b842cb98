"""Checkpoints as they are read: folders that are whole or not used. saving.py writes them.

    checkpoints/step-000500/model.safetensors   weights, under the model's own names
                            state.pt            optimizer, loss scaler, counters; loads with weights_only=True
                            config.yaml         the configuration that it was saved with
                            tokenizer.json
                            manifest.json       size and sha256 of those four
    checkpoints/last, checkpoints/best          small text files that name a folder, for people

Unusual: readers go by the folders, each of which proves itself, and not by `last` and `best`, which a crash may
leave behind and one flipped bit may turn into another name. Nothing in a checkpoint is ever executed.
"""

import json
import math
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from errors import UserError
from storage import digest

FILES = {"model.safetensors", "state.pt", "config.yaml", "tokenizer.json"}


@dataclass
class State:
    """What changes as a run goes on, besides weights and the optimizer's own state."""

    data_hash: str  # of the training tokens
    precision: str  # that the loss scaler's state belongs to
    held_out_hash: str | None = None  # of those of val/loss; older checkpoints do not know
    step: int = 0  # steps taken
    seconds: float = 0.0  # spent on them, validation and checkpoints included
    losses: list[float] = field(default_factory=list)  # of the steps since the last logged one
    skips: list[int] = field(default_factory=lambda: [0, 0, 0])  # guard.py's
    best: float = math.inf  # lowest val/loss so far
    best_step: int | None = None
    attempt: int = -1  # the newest that metrics.jsonl should know of
    tracker_id: str | None = None


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of the model without any wrapper's prefix and without second names of one tensor (tied embeddings)."""
    state, seen = {}, set()
    for name, tensor in unwrapped(model).state_dict().items():
        if tensor.data_ptr() not in seen:
            state[name] = tensor.detach().cpu().contiguous()
            seen.add(tensor.data_ptr())
    return state


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and DDP's wrappers, in whatever order."""
    for name in ("_orig_mod", "module"):
        if isinstance(inner := getattr(model, name, None), nn.Module):
            return unwrapped(inner)
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Every weight of the model from the checkpoint folder `path` of `find`, and nothing left over."""
    model = unwrapped(model)
    load_into(model, weights(model), stored_weights(path), path)


def load_but_schemes(model: nn.Module, path: Path, same: bool) -> list[str]:
    """As `load_weights`, but parameters of position schemes may differ: which of the model's were not taken.

    same: the checkpoint's scheme is the model's, so that its parameters are taken where they have the same shape.
    """
    model = unwrapped(model)
    own, stored = weights(model), stored_weights(path)
    fits = {n for n in own.keys() & stored.keys() if same and own[n].shape == stored[n].shape}
    free = {n for n in own.keys() | stored.keys() if n.startswith("schemes.")} - fits
    mine, theirs = ({n: x for n, x in s.items() if n not in free} for s in (own, stored))
    load_into(model, mine, theirs, path)
    return sorted(free & own.keys())


def stored_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path / 'model.safetensors'} cannot be read: {error}") from None


def load_into(
    model: nn.Module, own: dict[str, Tensor], stored: dict[str, Tensor], path: Path
) -> None:
    for name in sorted(own.keys() | stored.keys()):
        shapes = [tuple(s[name].shape) if name in s else "missing" for s in (own, stored)]
        if shapes[0] != shapes[1]:
            raise UserError(f"{path} does not fit: {name} is {shapes[1]}, the model's {shapes[0]}")
    model.load_state_dict(stored, strict=False)


def load_state(path: Path) -> tuple[dict[str, Any], dict[str, Any], State]:
    """State of the optimizer, of the scaler, and the counters, from the checkpoint folder `path` of `find`."""
    try:
        saved = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        return saved.pop("optimizer"), saved.pop("scaler"), State(**saved)
    except Exception as error:  # whatever a stranger's pickle may raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path / 'state.pt'} holds no state of a run: {reason}") from None


def find(folder: Path, which: str | int) -> Path:
    """The whole checkpoint that `last`, `best` or a step number stands for, in the run `folder`.

    Damaged ones are passed over for `last`, with a warning; a damaged one that is asked for is a UserError.
    """
    root, which = folder / "checkpoints", str(which)
    if which == "last":
        return newest(root)
    if which == "best":
        which = str(load_state(newest(root))[2].best_step)  # "None" where nothing was validated yet
    path = root / f"step-{int(which):06d}" if which.isdecimal() else None
    if path is None or not path.exists():
        there = ", ".join(p.name for p in steps(root)) or "nothing"
        raise UserError(f"checkpoint={which}: {root} has {there}; give last, best or a step")
    verify(path)
    return path


def newest(root: Path) -> Path:
    for path in reversed(steps(root)):
        try:
            verify(path)
        except UserError as error:
            warnings.warn(f"{error}; looking at the checkpoint before it", stacklevel=3)
        else:
            return path
    raise UserError(f"{root} has no whole checkpoint: nothing to go on with or to measure")


def steps(root: Path) -> list[Path]:
    """The checkpoints of a run, whole or not, oldest first."""
    found = [p for p in root.glob("step-*") if re.fullmatch(r"step-[0-9]{6,}", p.name)]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def verify(path: Path) -> None:
    """UserError if a file of the checkpoint is missing or is not what was written."""
    manifest = path / "manifest.json"
    try:
        known = {n: (f["bytes"], f["sha256"]) for n, f in json.loads(manifest.read_bytes()).items()}
    except OSError as error:
        raise UserError(f"{manifest} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{manifest} is damaged") from None
    if known.keys() != FILES:
        raise UserError(f"{manifest} is damaged: it must name {', '.join(sorted(FILES))}")
    for name, (size, sha256) in known.items():
        try:
            if (path / name).stat().st_size != size or digest(path / name) != sha256:
                raise UserError(f"{path / name} is damaged: it is not what the manifest says")
        except OSError as error:
            raise UserError(f"{path / name} cannot be read: {error.strerror}") from None
