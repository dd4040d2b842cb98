"""Parameter groups hold each parameter once; the schedule is the textbook's; bad numbers are named."""

import dataclasses
import math
from itertools import pairwise

import pytest
import torch
import yaml
from conftest import ROOT, SCHEMES
from torch import nn

from configs.schema import OptimSettings
from errors import UserError
from model.config import ModelConfig
from model.transformer import Transformer
from training.optim import build_optimizer, learning_rate, parameter_groups

SETTINGS = OptimSettings(**{
    k: float(v) if k != "warmup_steps" else v
    for k, v in yaml.safe_load((ROOT / "configs/optim/adamw.yaml").read_text()).items()
})  # fmt: skip


def model(position: str, tie: bool) -> Transformer:
    shape = ModelConfig(
        vocab_size=50, context_length=16, d_model=16, n_layers=2, n_heads=2, n_kv_heads=1,
        d_ff=24, norm_eps=1e-5, tie_embeddings=tie, softmax_scale=None,
    )  # fmt: skip
    settings = yaml.safe_load((ROOT / f"configs/position/{position}.yaml").read_text())
    return Transformer(shape, settings)


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("position", SCHEMES)
def test_groups_cover_each_parameter_once(position, tie):
    net = model(position, tie)
    decayed, free = parameter_groups(net, 0.1)
    ids = [id(p) for group in (decayed, free) for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in net.parameters())
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    names = {id(p): n for n, p in net.named_parameters()}
    linear = {
        f"{n}.weight"
        for n, m in net.named_modules()
        if isinstance(m, nn.Linear) and not n.startswith("schemes") and not (tie and n == "head")
    }
    assert {names[id(p)] for p in decayed["params"]} == linear


def test_schedule():
    steps, settings = 200, dataclasses.replace(SETTINGS, lr=1.0, min_lr=0.1, warmup_steps=20)
    rates = [learning_rate(s, steps, settings) for s in range(steps)]
    assert rates[:20] == pytest.approx([(s + 1) / 20 for s in range(20)])
    assert rates[20] == 1.0 and rates[-1] == pytest.approx(0.1)
    middle = 20 + (steps - 1 - 20) / 2
    assert learning_rate(middle, steps, settings) == pytest.approx(0.55)  # type: ignore[arg-type]
    assert all(a > b for a, b in pairwise(rates[20:]))
    assert not any(math.isnan(learning_rate(s, 1, settings)) for s in range(1))


def test_one_step_equals_adamw_by_hand():
    net = nn.Module()
    net.schemes, net.line = nn.ModuleList(), nn.Linear(3, 2, bias=False)
    before = net.line.weight.detach().clone()
    optimizer = build_optimizer(net, SETTINGS)
    net.line.weight.grad = gradient = torch.randn(2, 3)
    optimizer.step()
    shrunk = before * (1 - SETTINGS.lr * SETTINGS.weight_decay)
    expected = shrunk - SETTINGS.lr * gradient / (gradient.abs() + SETTINGS.eps)
    torch.testing.assert_close(net.line.weight.detach(), expected)


@pytest.mark.parametrize("key", ["lr", "eps", "min_lr", "weight_decay", "beta1", "beta2", "clip"])
def test_bad_numbers_are_named(key):
    with pytest.raises(UserError, match=f"optim.{key}"):
        build_optimizer(model("none", True), dataclasses.replace(SETTINGS, **{key: -1.0}))


def test_the_cosine_comes_down():
    build_optimizer(model("none", True), dataclasses.replace(SETTINGS, min_lr=SETTINGS.lr))
    with pytest.raises(UserError, match=r"optim\.min_lr=.* must not be above optim\.lr="):
        build_optimizer(model("none", True), dataclasses.replace(SETTINGS, min_lr=2 * SETTINGS.lr))
