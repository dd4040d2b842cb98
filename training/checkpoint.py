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
from zipfile import ZIP_STORED, ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from configs.check import LONGEST, made
from errors import UserError
from storage import digest, read_bounded
from training.precision import DTYPES

LARGEST_MANIFEST = 2**16  # bytes
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

    def __post_init__(self) -> None:
        counts = [self.step, self.best_step or 0, self.attempt + 1, *self.skips]
        if not all(0 <= count < LONGEST for count in counts) or len(self.skips) != 3:
            raise UserError("a step or a count is out of range")
        if not math.isfinite(self.seconds) or math.isnan(self.best):
            raise UserError("seconds or best is no number")
        if self.precision not in DTYPES:
            raise UserError("its precision is unknown")
        if not re.fullmatch(r"[\w-]{1,64}", self.tracker_id or "-", re.ASCII):
            raise UserError("tracker_id is no id")  # it becomes part of a path


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
        if stored[name].dtype != own[name].dtype:
            raise UserError(f"{path}: {name} is {stored[name].dtype}, not {own[name].dtype}")
        if not stored[name].isfinite().all():
            raise UserError(f"{path}: {name} has a value that is not finite")
    model.load_state_dict(stored, strict=False)


def load_state(path: Path) -> tuple[dict[str, Any], dict[str, Any], State]:
    """State of the optimizer, of the scaler, and the counters, from the checkpoint folder `path` of `find`."""
    file = path / "state.pt"
    try:
        with ZipFile(file) as archive:  # torch compresses nothing: what is compressed may be a bomb
            if any(entry.compress_type != ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is compressed")
        saved = torch.load(file, map_location="cpu", weights_only=True)
        optimizer, scaler = saved.pop("optimizer"), saved.pop("scaler")
        state = made(State, saved)
        if state.step != step_of(path):
            raise ValueError(f"it is of step {state.step}")
    except Exception as error:  # whatever a stranger's pickle may raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{file} holds no state of a run: {reason}") from None
    return optimizer, scaler, state


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Any, path: Path) -> None:
    """The moments of `load_state`; rates and the like are the configuration's. UserError where they do not fit."""
    try:
        own = optimizer.state_dict()
        if [g["params"] for g in saved["param_groups"]] != [
            g["params"] for g in own["param_groups"]
        ]:
            raise ValueError("it is of other parameters")
        parameters = dict(enumerate(p for g in optimizer.param_groups for p in g["params"]))
        for index, moments in saved["state"].items():
            shapes = dict.fromkeys(("exp_avg", "exp_avg_sq"), parameters[index].shape)
            for name, shape in {"step": torch.Size(), **shapes}.items():
                if not is_plain(moments[name], shape):
                    raise ValueError(f"{name} of parameter {index} does not fit")
            if len(moments) != 3:
                raise ValueError(f"parameter {index} has more than its moments")
        optimizer.load_state_dict({"state": saved["state"], "param_groups": own["param_groups"]})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        file = path / "state.pt"
        raise UserError(f"{file} holds no state of this run's optimizer: {error}") from None


def is_plain(tensor: Any, shape: torch.Size) -> bool:
    """Whether it is float32 numbers of that shape, each finite and in a place of its own."""
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and (tensor.dtype, tensor.shape) == (torch.float32, shape)
        and tensor.is_contiguous()
        and bool(tensor.isfinite().all())
    )


def load_scaler(scaler: torch.amp.GradScaler, saved: Any, path: Path) -> None:
    """The loss scale of `load_state`; UserError where it is none."""
    own = scaler.state_dict()
    fits = isinstance(saved, dict) and {k: type(v) for k, v in saved.items()} == {
        k: type(v) for k, v in own.items()
    }
    if not fits or not all(math.isfinite(v) and v >= 0 for v in saved.values()):
        raise UserError(f"{path / 'state.pt'} holds no state of a loss scaler")
    scaler.load_state_dict(saved)


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
    found = [
        p for p in root.glob("step-*") if re.fullmatch(r"step-([0-9]{6}|[1-9][0-9]{6,17})", p.name)
    ]
    return sorted((p for p in found if p.is_dir() and not p.is_symlink()), key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def verify(path: Path) -> None:
    """UserError if a file of the checkpoint is missing or is not what was written."""
    manifest = path / "manifest.json"
    try:
        listed = json.loads(read_bounded(manifest, LARGEST_MANIFEST))
        known = {name: (f["bytes"], f["sha256"]) for name, f in listed.items()}
    except OSError as error:
        raise UserError(f"{manifest} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UserError(f"{manifest} is damaged") from None
    if known.keys() != FILES:
        raise UserError(f"{manifest} is damaged: it must name {', '.join(sorted(FILES))}")
    for name, (size, sha256) in known.items():
        try:
            if (path / name).stat().st_size != size or digest(path / name) != sha256:
                raise UserError(f"{path / name} is damaged: it is not what the manifest says")
        except OSError as error:
            raise UserError(f"{path / name} cannot be read: {error.strerror}") from None
