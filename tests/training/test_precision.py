"""auto follows the device; loss scaling keeps its order; what needs float32 is computed in it under autocast."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import yaml
from conftest import ROOT

from errors import UserError
from model.attention import turn_and_attend
from model.config import ModelConfig
from model.transformer import Transformer
from training.distributed import World
from training.precision import DTYPES, Precision, choose_device

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


# Twice the largest that was measured, torch 2.13 on a CPU
LOSS = {"bf16": 1.2e-4, "fp16": 1.2e-5}  # nats, of a mean near 5.7
GRADIENT = {"bf16": 6.6e-3, "fp16": 9e-4}  # of the whole gradient, relative
SOME = ["rope", "alibi", "t5", "fire", "fox", "sinusoidal"]  # every score form, tables, gates


def one_pass(position: str, name: str):
    """Loss, gradient (one vector) and model of a tiny network on the CPU."""
    shape = ModelConfig(
        vocab_size=300, context_length=24, d_model=32, n_layers=2, n_heads=2, n_kv_heads=2,
        d_ff=64, norm_eps=1e-5, tie_embeddings=True, softmax_scale=None,
    )  # fmt: skip
    settings = yaml.safe_load((ROOT / f"configs/position/{position}.yaml").read_text())
    model, precision = Transformer(shape, settings), Precision.choose(name, CPU)
    model.reset(1)
    tokens = torch.randint(300, (4, 25), generator=torch.Generator().manual_seed(0))
    scaler = precision.scaler()
    with precision.autocast():
        loss = model(tokens[:, :-1], tokens[:, 1:]).mean()
    scaler.scale(loss).backward()
    optimizer = torch.optim.SGD(model.parameters())
    scaler.unscale_(optimizer)
    return loss, torch.cat([p.grad.flatten() for p in model.parameters()]), model


@pytest.mark.parametrize("position", SOME)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_error_against_float32(position, name):
    loss, gradient, model = one_pass(position, name)
    exact, exact_gradient, _ = one_pass(position, "fp32")
    assert loss.dtype == gradient.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {torch.float32}, "the master weights"
    assert 0 < (loss - exact).abs() < LOSS[name]
    assert (gradient - exact_gradient).norm() / exact_gradient.norm() < GRADIENT[name]


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_gradients_of_gates_do_not_drown_in_rounding(name):
    """A gate is in every score across it: its gradient is a long sum that cancels."""
    shape = ModelConfig(
        vocab_size=300, context_length=512, d_model=32, n_layers=2, n_heads=2, n_kv_heads=2,
        d_ff=48, norm_eps=1e-5, tie_embeddings=True, softmax_scale=None,
    )  # fmt: skip
    settings = yaml.safe_load((ROOT / "configs/position/fox.yaml").read_text())
    tokens = torch.randint(300, (1, 513), generator=torch.Generator().manual_seed(0))
    found = []
    for precision in (Precision(name, CPU), Precision("fp32", CPU)):
        model = Transformer(shape, settings)
        model.reset(1)
        with precision.autocast():
            loss = model(tokens[:, :-1], tokens[:, 1:]).mean()
        (loss * 2**10).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.schemes.parameters()]))
    assert (found[0] - found[1]).norm() / found[1].norm() < 0.01


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("position", ["t5", "kerple_log"])
def test_gradients_of_tables_are_summed_in_float32(position, name):
    """A distance's score is in a hundred rows and more: in a format of 8 bits the sum of its gradients would drift."""
    shape = ModelConfig(
        vocab_size=300, context_length=256, d_model=16, n_layers=1, n_heads=2, n_kv_heads=2,
        d_ff=24, norm_eps=1e-5, tie_embeddings=True, softmax_scale=None,
    )  # fmt: skip
    settings = yaml.safe_load((ROOT / f"configs/position/{position}.yaml").read_text())
    found = []
    for dtype in (DTYPES[name], torch.float64):
        model = Transformer(shape, settings)
        model.reset(1)
        places = model.places(torch.zeros(1, 256, dtype=torch.long), None, None, None, None)
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, 2, 256, 8, generator=generator) for _ in range(3))
        q, k, v = (x.to(DTYPES[name]).to(dtype) for x in (q, k, v))
        turn_and_attend(q, k, v, model.positions[0], None, places, 0.35).double().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.schemes.parameters()]).double())
    mixed, exact = found
    assert (mixed - exact).norm() / exact.norm() < {"bf16": 2.5e-3, "fp16": 5e-4}[name]


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_norms_and_losses_run_in_float32(name, monkeypatch):
    seen = []
    rms, entropy = F.rms_norm, F.cross_entropy
    monkeypatch.setattr(
        F, "rms_norm", lambda x, *a, **k: seen.append(("norm", x.dtype)) or rms(x, *a, **k)
    )
    monkeypatch.setattr(
        F, "cross_entropy", lambda x, *a, **k: seen.append(("loss", x.dtype)) or entropy(x, *a, **k)
    )
    one_pass("rope", name)
    assert len(seen) == 6 and set(seen) == {("norm", torch.float32), ("loss", torch.float32)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("position", ["rope", "t5", "fire"])  # fused kernel, table, dense block
def test_softmax_runs_in_float32(position, dtype, monkeypatch):
    """The answer is as near to float64's, from the same inputs, as rounding inputs and answer leaves it.

    In units of eps: 0.37 on average, 0.51 or more with weights added up in `dtype`.
    """
    shape = ModelConfig(
        vocab_size=300, context_length=512, d_model=16, n_layers=1, n_heads=2, n_kv_heads=2,
        d_ff=24, norm_eps=1e-5, tie_embeddings=True, softmax_scale=None,
    )  # fmt: skip
    settings = yaml.safe_load((ROOT / f"configs/position/{position}.yaml").read_text())
    scheme = Transformer(shape, settings)
    scheme.reset(1)
    (position_object,) = scheme.positions
    places = scheme.places(torch.zeros(1, 512, dtype=torch.long), None, None, None, None)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 512, 8, generator=generator).to(dtype) for _ in range(3))
    v = v + 2  # all means are near 2: a sum of weights that is off shows
    found = turn_and_attend(q, k, v, position_object, None, places, 0.35)
    exact = turn_and_attend(q.double(), k.double(), v.double(), position_object, None, places, 0.35)
    error = (found.double() - exact).abs()
    assert error.mean() < 0.45 * torch.finfo(dtype).eps


def test_unknown_names():
    with pytest.raises(UserError, match=r"precision=bf61 is unknown; did you mean bf16\?"):
        Precision.choose("bf61", CPU)
    for device in ("quantum", "mps"):  # Apple's GPUs have no float64
        with pytest.raises(UserError, match=f"device={device} is none of auto, cpu, cuda"):
            choose_device(device)


def test_order_of_a_scaled_step(monkeypatch):
    import torch.nn.utils

    from data.loader import Batch
    from train import Loop
    from training.checkpoint import State
    from training.guard import Guard

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
        state=State(data_hash="", precision="fp32"),
        guard=Guard(Precision("fp32", CPU), [0, 0, 0]),
        precision=Precision("fp32", CPU),
        learner=SimpleNamespace(
            model=torch.nn.Module(),
            called=lambda tokens, targets, mean, segments, pos: (targets * weight).mean(),
            optimizer=torch.optim.SGD([weight]),
            scaler=Recorder(),
        ),
    )
    batch = Batch(torch.ones(8, 5), None)
    loss, _, _ = Loop.step(loop, batch)  # type: ignore[arg-type]
    assert called == ["scale"] * 4 + ["unscale_", "clip", "step", "update"]
    assert loss.item() == pytest.approx(1.0)
