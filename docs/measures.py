"""What a position scheme does to a query at the end of a text, by the distance of the key.

What is unusual: no formula and no name of a scheme stands here. A scheme is asked through the methods
by which it speaks to the model, at model=tiny, with weights as they are before training (seed 0). So
the pictures of docs/schemes.md show the code that trains.

H heads, D head width, T tokens; a measure is (H or 1, T), by distance.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from model.config import ModelConfig
from model.position import build_positions
from model.position.base import Position

CONFIGS = Path(__file__).parents[1] / "configs"
MULTIPLE = 8  # how many trained contexts the distances reach


@cache
def tiny() -> ModelConfig:
    """model=tiny at its default context."""
    shape: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / "model/tiny.yaml"), resolve=True)
    context = OmegaConf.load(CONFIGS / "train.yaml").context_length
    return ModelConfig(vocab_size=1, context_length=context, **shape)  # schemes see no vocabulary


def settings(option: str) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"position/{option}.yaml"))
    return found


def build(chosen: Mapping[str, Any]) -> list[Position]:
    positions = build_positions(tiny(), chosen)
    generator = torch.Generator().manual_seed(0)
    for scheme in dict.fromkeys(positions):
        scheme.reset(generator)
    return positions


def speaks(position: Position) -> list[str]:
    """Where a scheme says something: of embed, rotate, clock, distance, pair."""
    kind = type(position)
    vectors = [m for m in ("embed", "rotate") if getattr(kind, m) is not getattr(Position, m)]
    return vectors + [position.form] * (position.form != "none")


def likeness(position: Position, length: int) -> Tensor:
    """Cosine between the vectors added at the last position and at those before it."""
    vectors = position.embed(torch.zeros(1, length, tiny().d_model), torch.arange(length))
    return F.cosine_similarity(vectors[:, -1:], vectors, dim=-1).flip(-1)


def kernel(position: Position, length: int) -> Tensor:
    """Mean q·k of a query and a key that were the same vector of length 1 before they were turned.

    The mean over all directions of the vector is the mean over the axes: a trace.
    """
    config, pos = tiny(), torch.arange(length)
    axes = torch.eye(config.d_head, dtype=torch.float64)[:, None, None]  # (D, 1, 1, D)
    q = axes.expand(-1, config.n_heads, 1, -1)
    k = axes.expand(-1, config.n_kv_heads, length, -1)
    q, k = position.rotate(q, k, pos[-1:], pos, length)
    k = k.repeat_interleave(config.n_heads // config.n_kv_heads, dim=1)
    return (q @ k.mT).mean(dim=0).squeeze(1).flip(-1)


def clock_score(position: Position, length: int) -> Tensor:
    """Of tokens that all look alike, x = 0: a clock that reads the text runs evenly then."""
    reading = position.clock(torch.zeros(1, length, tiny().d_model), torch.arange(length))
    c = reading.c[0]
    return (torch.tensor(reading.scale)[:, None] * (c[:, -1:] - c)).flip(-1)


def score(position: Position, length: int) -> Tensor:
    pos = torch.arange(length)
    return position.pair(pos[-1:, None], pos[None])[:, 0].flip(-1)


def nothing(position: Position, length: int) -> Tensor:
    return torch.zeros(1, length)


ADDED = "added to the score"
MEASURES: dict[str, tuple[str, Callable[[Position, int], Tensor]]] = {
    "embed": ("cosine of two position vectors", likeness),
    "rotate": ("mean q·k of equal vectors", kernel),
    "clock": (ADDED, clock_score),
    "distance": (ADDED, score),
    "pair": (ADDED, score),
    "nowhere": (ADDED, nothing),
}


@dataclass(frozen=True)
class Line:
    label: str
    colour: int
    dashed: bool
    y: tuple[float, ...]  # by distance from 0


def texts(position: Position, place: str) -> list[Tensor]:
    """The measure in a long text; before it, if it is another one, that in a text of trained length."""
    measure, trained = MEASURES[place][1], tiny().context_length
    far = measure(position, min(position.max_length or MULTIPLE * trained, MULTIPLE * trained))
    near = measure(position, min(far.shape[1], trained))
    return [far] if torch.allclose(near, far[:, : near.shape[1]], atol=1e-4) else [near, far]


@torch.no_grad()
def lines(position: Position, place: str, variant: str, colour: int) -> list[Line]:
    """One a head, or one for all heads where they agree."""
    found = []
    measured = texts(position, place)
    for heads in measured:
        alike = torch.allclose(heads, heads[:1].expand_as(heads))
        for h, row in enumerate(heads[:1] if alike else heads):
            label = ", ".join(filter(None, [variant, "" if alike else f"head {h + 1}"]))
            y = tuple(round(v, 5) for v in row[: position.window].tolist())
            found.append(Line(label or "all heads", colour + h, heads is not measured[-1], y))
    return found


@cache
def panels(option: str, varied: str) -> dict[Any, list[int]]:
    """What is to be drawn, each as (place, window, lines), and the layers that it is true of.

    varied: YAML of the settings to vary, each with a list of values; each value is a variant.
    """
    chosen, variants = settings(option), []
    for key, values in OmegaConf.create(varied or "{}").items():
        for value in values:
            name = f"{key}={'null' if value is None else value}"
            variants.append((name, build({**chosen, str(key): value})))
    variants = variants or [("", build(chosen))]
    layers: dict[Any, list[int]] = {}
    seen: dict[Any, list[Any]] = {}
    for i, stack in enumerate(zip(*(positions for _, positions in variants), strict=True)):
        if stack not in seen:
            seen[stack] = list(drawn([name for name, _ in variants], stack))
        for panel in seen[stack]:
            layers.setdefault(panel, []).append(i + 1)
    return layers


def drawn(names: Sequence[str], stack: Sequence[Position]) -> Iterator[tuple[Any, ...]]:
    """One panel for each place where the layer's scheme speaks, all variants in it."""
    for place in speaks(stack[0]) or ["nowhere"]:
        found: list[Line] = []
        for name, position in zip(names, stack, strict=True):
            colour = max((line.colour for line in found), default=-1) + 1
            known = {line.y for line in found}
            found += [new for new in lines(position, place, name, colour) if new.y not in known]
        yield place, stack[0].window, tuple(found)
