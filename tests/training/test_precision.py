"""auto follows the device; loss scaling keeps its order: scale, unscale, clip, step, update."""

from types import SimpleNamespace

import pytest
import torch

from errors import UserError
from training.distributed import World
from training.precision import Precision, choose_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(("has_bf16", "name"), [(True, "bf16"), (False, "fp16")])
def test_auto(monkeypatch, has_bf16, name):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: has_bf16)
    assert Precision.choose("auto", CUDA).name == name
    assert Precision.choose("auto", CPU).name == "fp32"


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_autocast_and_scaler(name):
    precision = Precision.choose(name, CPU)
    with precision.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert product.dtype == wanted[name]
    assert precision.scaler().is_enabled() == (name == "fp16")


def test_unknown_names():
    with pytest.raises(UserError, match=r"precision=bf61 is unknown; did you mean bf16\?"):
        Precision.choose("bf61", CPU)
    with pytest.raises(UserError, match="device=quantum"):
        choose_device("quantum")


def test_order_of_a_scaled_step(monkeypatch):
    import torch.nn.utils

    from train import Loop
    from training.checkpoint import State

    called = []

    class Recorder:
        def __getattr__(self, name):
            return lambda *a: called.append(name) or (a[0] if a else None)

    clip = lambda parameters, norm: called.append("clip") or torch.tensor(1.0)  # noqa: E731
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    weight = torch.nn.Parameter(torch.ones(()))
    optim = SimpleNamespace(lr=1.0, min_lr=0.1, warmup_steps=0, clip=1.0)
    loop = SimpleNamespace(
        world=World(),
        config=SimpleNamespace(
            optim=optim,
            train=SimpleNamespace(steps=3, accumulate=4, position_range=None),
            context_length=4,
            seed=1,
        ),
        state=State(data_hash=""),
        optimizer=torch.optim.SGD([weight]),
        precision=Precision("fp32", CPU),
        compiled=lambda tokens, targets, segments, pos: targets * weight,
        scaler=Recorder(),
        model=torch.nn.Module(),
    )
    batch = SimpleNamespace(tokens=torch.ones(8, 5), segments=None)
    loss, _, _ = Loop.step(loop, batch)  # type: ignore[arg-type]
    assert called == ["scale"] * 4 + ["unscale_", "clip", "step", "update"]
    assert loss.item() == pytest.approx(1.0)
