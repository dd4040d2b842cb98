"""What schemes start from: their learned numbers as drawn, and the numbers in their files, are those that papers and
released code give (docs/schemes.md has the sources)."""

from collections.abc import Callable

import pytest
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor

from evaluation.kit.subjects import CONFIGS, subjects
from model.config import ModelConfig
from model.transformer import Transformer

WIDE = ModelConfig(
    vocab_size=5, context_length=400, d_model=2048, n_layers=1, n_heads=1024, n_kv_heads=1, d_ff=1,
    norm_eps=1e-5, tie_embeddings=False, softmax_scale=None,
)  # fmt: skip


def same(x: Tensor) -> Tensor:
    return x


def uniform(low: float, high: float, clamped: float = 0) -> Callable[[Tensor], None]:
    def check(x: Tensor) -> None:
        n, spread = x.numel(), (high - low) / 12**0.5
        assert x.min() >= low + clamped - 1e-5 and x.max() <= high - clamped + 1e-5
        room = (high - low) * 10 / n + 2 * clamped  # the ends are nearly reached
        assert x.min() <= low + room and x.max() >= high - room
        assert abs(x.mean() - (low + high) / 2) < 4 * spread / n**0.5
        assert x.std() == pytest.approx(spread, rel=0.1 if n > 1000 else 0.5)

    return check


def normal(std: float) -> Callable[[Tensor], None]:
    def check(x: Tensor) -> None:
        assert abs(x.mean()) < 4 * std / x.numel() ** 0.5
        assert x.std() == pytest.approx(std, rel=0.02)
        assert (x.abs() > 2 * std).float().mean() == pytest.approx(
            0.0455, rel=0.15
        )  # no uniform one

    return check


def constant(value: float) -> Callable[[Tensor], None]:
    def check(x: Tensor) -> None:
        assert (x == value).all()

    return check


# scheme, parameter: what it means (what the formula uses), and how that starts
STARTS: dict[tuple[str, str], tuple[Callable[[Tensor], Tensor], Callable[[Tensor], None]]] = {
    ("learned", "table"): (same, normal(0.02)),  # GPT-2
    ("t5", "table"): (same, normal(2048**-0.5)),  # Mesh TensorFlow, by d_model
    ("kerple_log", "raw_r1"): (F.softplus, uniform(0, 2, 0.01)),
    ("kerple_log", "raw_r2"): (F.softplus, uniform(0, 1, 0.01)),
    ("kerple_power", "raw_r1"): (F.softplus, uniform(0, 1, 0.01)),
    ("kerple_power", "raw_r2"): (lambda x: 2 * x.sigmoid(), uniform(0, 2, 0.01)),
    ("fire", "c"): (same, constant(0.1)),
    ("fire", "multiplier"): (same, constant(1.0)),
    ("fire", "w1"): (same, uniform(-1, 1)),  # nn.Linear of one number
    ("fire", "b1"): (same, uniform(-1, 1)),
    ("fire", "w2"): (same, uniform(-(32**-0.5), 32**-0.5)),  # and of 32
    ("fire", "b2"): (same, uniform(-(32**-0.5), 32**-0.5)),
    ("fox", "weight"): (same, normal(0.02)),
    ("fox", "bias"): (same, constant(0.0)),  # as released
}


def scheme_of(name: str):
    model = Transformer(WIDE, OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{name}.yaml")))  # type: ignore
    model.reset(3)
    return model.positions[0]


@pytest.mark.parametrize(("scheme", "name"), STARTS, ids=":".join)
def test_a_learned_number_starts_as_published(scheme: str, name: str) -> None:
    meaning, start = STARTS[scheme, name]
    start(meaning(scheme_of(scheme).get_parameter(name).detach()))


def test_no_learned_number_is_left_out() -> None:
    found = {
        (s.option, name)
        for s in subjects(variants=False)
        if s.option != "hybrid"
        for name, _ in s.model().positions[0].named_parameters()
    }
    assert found == set(STARTS)


def test_fire_starts_with_a_quarter_of_the_context() -> None:
    assert scheme_of("fire").threshold == 100  # the paper's 512 of 2,048


ROPE = {"base": 10_000, "fraction": 1, "keep": 1, "layout": "split_half"}
SCALED = {**ROPE, "factor": 8, "original_context": None}
FILES = {
    "none": {},
    "learned": {"rows": None, "extend": None, "factor": 8, "seed": 0},
    "sinusoidal": {"base": 10_000},
    "rope": ROPE,
    "rope_linear": SCALED,
    "rope_ntk": SCALED,
    "rope_dynamic": {**SCALED, "factor": 1},  # the l/L of YaRN's paper
    "rope_by_parts": {**SCALED, "alpha": 1, "beta": 32},
    "rope_yarn": {**SCALED, "alpha": 1, "beta": 32, "ramp": "code", "temperature": 0.1},
    "rope_llama3": {**SCALED, "alpha": 1, "beta": 4},
    "xpos": {"base": 10_000, "layout": "split_half", "gamma": 0.4, "scale_base": 512},
    "alibi": {"exponent": 8},
    "t5": {"buckets": 32, "max_distance": 128},
    "kerple_log": {},
    "kerple_power": {},
    "fire": {"threshold": None, "hidden": 32},
    "sandwich": {"base": 10_000, "width": 128},
    "fox": {"bias": 0},
}


@pytest.mark.parametrize("scheme", sorted(p.stem for p in CONFIGS.glob("*.yaml")))
def test_a_file_says_what_the_paper_says(scheme: str) -> None:
    settings = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{scheme}.yaml"))
    assert isinstance(settings, dict) and settings.pop("name") == scheme
    if scheme != "hybrid":
        assert settings == FILES[scheme]
