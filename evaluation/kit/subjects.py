"""What the conformance kit examines: each file of configs/position, in a tiny model.

Some with other settings than the file's too. Weights are drawn larger than for training: there all
scores are near zero at first, every token sees all others alike, and a position scheme could do
anything unnoticed.

B batch, T tokens, C model width.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from model.config import ModelConfig
from model.transformer import Transformer

CONFIGS = Path(__file__).parents[2] / "configs" / "position"
CONTEXT = 33  # the trained length; odd, and the formulas are also examined beyond it
LENGTH = 65

FADING_AND_NONE = [
    {"name": "alibi", "window": 7, "exponent": 8},
    {"name": "none", "window": None},
]
WAVES_AND_BIAS = [
    {"name": "sinusoidal", "window": None, "base": 10_000},
    {"name": "kerple_log", "window": 20},
]
PAIRS_AND_PAIRS = [  # scores that are kept for other layers, in equal blocks
    {"name": "fire", "window": None, "threshold": 5, "hidden": 3},
    {"name": "fire", "window": None, "threshold": 20, "hidden": 4},
]
GROWING_AND_LEARNED = [
    {"name": "fire", "window": None, "threshold": None, "hidden": 3},
    {"name": "rope_dynamic", "window": 30, "base": 10_000, "layout": "split_half"}
    | {"fraction": 1, "keep": 1, "factor": 2, "original_context": 12},
]

# Settings beside the defaults, which one file cannot show. "softmax_scale" belongs to the model.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "none": [{"softmax_scale": "log"}, {"softmax_scale": 0.4}],
    "learned": [
        {"rows": 70},
        {"extend": "clamp"},
        {"extend": "interpolate", "factor": 2.5},
        {"extend": "random", "seed": 3},
    ],
    "rope": [{"layout": "interleaved"}, {"fraction": 0.5}, {"keep": 0.4}, {"softmax_scale": "log"}],
    "rope_dynamic": [
        {"original_context": 20, "factor": 3},
        {"original_context": 20, "factor": 1, "softmax_scale": "log"},
    ],
    "rope_by_parts": [{"original_context": 400, "fraction": 0.75, "layout": "interleaved"}],
    "rope_yarn": [{"ramp": "paper", "original_context": 400}, {"original_context": 400}],
    "rope_llama3": [{"original_context": 400}],
    "xpos": [{"layout": "interleaved", "scale_base": 16}],
    "alibi": [{"exponent": 3}, {"softmax_scale": "log"}],
    "t5": [{"buckets": 12, "max_distance": 40}],
    "fire": [{"threshold": 100, "hidden": 5}],
    "fox": [{"bias": 5}],
    "hybrid": [
        {"layers": FADING_AND_NONE},
        {"layers": WAVES_AND_BIAS},
        {"layers": FADING_AND_NONE, "softmax_scale": "log"},
        {"layers": GROWING_AND_LEARNED},
        {"layers": PAIRS_AND_PAIRS},
    ],
}


@dataclass(frozen=True)
class Result:
    """What a check found: an error, at most the bound, or (`least`) a difference, at least it."""

    error: float
    bound: float
    least: bool = False

    @property
    def ok(self) -> bool:
        return self.error >= self.bound if self.least else self.error <= self.bound  # no for NaN


def gap(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative where numbers are above 1; infinite for a NaN in a."""
    if a.shape != b.shape:
        raise ValueError(f"{tuple(a.shape)} is not {tuple(b.shape)}")
    if not a.isfinite().all():
        return float("inf")
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


@dataclass(eq=False)
class Subject:
    """A scheme with its settings, and models with it."""

    option: str  # configs/position/<option>.yaml
    settings: dict[str, Any]
    label: str
    softmax_scale: Any = None
    built: dict[Any, Transformer] = field(default_factory=dict, repr=False)

    def config(self, **changes: Any) -> ModelConfig:
        shape = {
            "vocab_size": 61,
            "context_length": CONTEXT,
            "d_model": 96,
            "n_layers": 2,
            "n_heads": 6,  # no power of two
            "n_kv_heads": 3,
            "d_ff": 64,
            "norm_eps": 1e-5,
            "tie_embeddings": False,
            "softmax_scale": self.softmax_scale,
        }
        return ModelConfig(**(shape | changes))

    def build(self, dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
        """A new model with stirred weights, equal whenever the arguments are."""
        model = Transformer(self.config(**changes), self.settings)
        model.reset(0)
        stir(model)
        return model.to(dtype).eval()

    def model(self, dtype: torch.dtype = torch.float64, **changes: Any) -> Transformer:
        """As `build`, made once: for those who only look."""
        key = (dtype, *changes.items())
        if key not in self.built:
            self.built[key] = self.build(dtype, **changes).requires_grad_(False)
        return self.built[key]

    @property
    def forms(self) -> set[str]:
        return {position.form for position in self.model().positions}

    @property
    def shallow(self) -> int:
        """The fewest layers that show all of the scheme."""
        return len(self.settings.get("layers", "1"))

    @property
    def length(self) -> int:
        """Beyond the trained length, where the scheme is defined there."""
        return min(LENGTH, self.model().max_length or LENGTH)

    def tokens(self, rows: int = 2, T: int | None = None) -> Tensor:
        """(rows, T), always the same."""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(61, (rows, LENGTH), generator=generator)[:, : T or self.length]

    def positions(self, kind: str, T: int | None = None) -> Tensor:
        """Positions as data: (T,), or (2, T) where rows differ."""
        T = T or self.length
        index, generator = torch.arange(T), torch.Generator().manual_seed(2)
        limit = self.model().max_length or 10 * T
        match kind:
            case "clamped":
                return index.clamp(max=T // 3)
            case "restarted":
                return index % (T // 3)
            case "sorted":
                return torch.stack(
                    [torch.randperm(limit, generator=generator)[:T].sort().values for _ in "ab"]
                )
            case "random":
                return torch.randint(limit, (2, T), generator=generator)
            case "backwards":
                return index.flip(0)
        raise ValueError(kind)


def stir(model: Transformer) -> None:
    """Weights with which a softmax discriminates; a scheme's own move from where they start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.startswith("schemes."):
                p.add_(0.3 * noise if p.dim() > 1 else 0.2 * (p.abs() + 0.2) * noise.tanh())
            elif p.dim() == 1:
                p.add_(0.2 * noise.tanh())
            elif isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Embedding):
                p.copy_(0.1 * noise)  # sinusoidal makes more of it: the position still matters
            else:
                gain = 1.5 if name.endswith(("wq.weight", "wk.weight")) else 1.0
                p.copy_(noise * gain / p.shape[1] ** 0.5)


def subjects(folder: Path = CONFIGS, variants: bool = True) -> list[Subject]:
    """One for each file, and one for each of its variants."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        settings = OmegaConf.to_container(OmegaConf.load(path))
        for changes in [{}, *(VARIANTS.get(path.stem, []) if variants else [])]:
            found.append(subject(path.stem, settings, changes))
    return found


def subject(option: str, settings: Any, changes: dict[str, Any] | None = None) -> Subject:
    changes = dict(changes or {})
    shown = ",".join(f"{k}={v}" for k, v in changes.items() if k != "layers")
    if "layers" in changes:
        entries = "+".join(entry["name"] for entry in changes["layers"])
        shown = ",".join(filter(None, (entries, shown)))
    label = option + (f"[{shown}]" if shown else "")
    scale = changes.pop("softmax_scale", None)
    return Subject(option, {**settings, **changes}, label, scale)


def by_name(option: str, **changes: Any) -> Subject:
    """The scheme of one file, with some settings changed."""
    settings = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{option}.yaml"))
    return subject(option, settings, changes)
