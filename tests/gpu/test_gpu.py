"""On a GPU: what the other tests say on a CPU in float64 holds there too, in the formats and kernels that train.

`python -m pytest -m gpu tests/gpu` needs torch, NumPy and pytest alone. Bounds are relative errors,
|out - reference| / |reference|, against float64 on the CPU or of the same rounded inputs.
"""

import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_attention import chosen, error, inputs, our_attention, position_of, reference
from benchmarks.subjects import SCHEMES, Shape, Trainee, mean_nats, ours
from model.attention import sdpa
from model.cache import Cache

DEVICE = "cuda"
SHAPE = Shape(128, 2, 4, 256, vocab_size=256, context=96)
FORMS = (
    "rope",
    "alibi",
    "fox",
    "t5",
    "fire",
)  # a scheme of each, and the clock whose readings are learned
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def exact_float32():
    """TF32 off, so that float32 means that; and nothing compiled left over."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._dynamo.reset()
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def loud(name: str, **shape: int) -> torch.nn.Module:
    """Weights larger than for training, so that attention looks at something."""
    at = Shape(**{**vars(SHAPE), **shape})
    model = ours(at, name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= 3
    return model


def text(batch: int, length: int) -> torch.Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_logits_are_those_of_float64(name, form):
    model, tokens = loud(name), text(2, 96)
    exact = copy.deepcopy(model).double().features(tokens)
    model.to(DEVICE)
    dtype = DTYPES[form]
    with torch.autocast(DEVICE, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        out = model.features(tokens.to(DEVICE)).cpu()
    bound = {"fp32": 1e-5, "bf16": 3e-2, "fp16": 5e-3}[form]
    assert error(out, exact)["relative_error"] < bound


@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("name", ["none", *FORMS])
@torch.no_grad()
def test_attention_is_exact_at_8192_tokens(name, form, heads):
    position = position_of(name, heads, 64, DEVICE)
    made = inputs(heads, 64, 8192, DTYPES[form] or torch.float32, DEVICE)
    rows = chosen(8192, DEVICE)
    out = our_attention(position, *made)[:, :, rows]
    bound = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1.5e-3}[form]
    assert error(out, reference(position, *made, rows))["relative_error"] < bound


@pytest.mark.parametrize("name", ["none", "rope", "alibi", "fox"])
def test_a_form_without_a_mask_runs_in_flash_attention(name):
    position = position_of(name, 12, 64, DEVICE)
    *qkv, x = inputs(12, 64, 1024, torch.bfloat16, DEVICE)
    qkv = [t.detach().requires_grad_() for t in qkv]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # raises where it cannot
        our_attention(position, *qkv, x).sum().backward()
    assert all(t.grad.isfinite().all() for t in qkv)


def test_a_mask_does_not():
    position = position_of("t5", 12, 64, DEVICE)
    made = inputs(12, 64, 1024, torch.bfloat16, DEVICE)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError):
        our_attention(position, *made)


@pytest.mark.parametrize("form", DTYPES)
@pytest.mark.parametrize("name", FORMS)
def test_training_learns(name, form):
    tokens = text(8, 97).to(DEVICE)
    trainee = Trainee(ours(SHAPE, name).to(DEVICE), mean_nats, dtype=DTYPES[form])
    for group in trainee.optimizer.param_groups:
        group["lr"] = 3e-3
    losses = [trainee.step(tokens).item() for _ in range(10)]
    assert losses[-1] < losses[0] - 0.3
    assert all(p.isfinite().all() for p in trainee.model.parameters())


@pytest.mark.parametrize("name", ["rope", "alibi", "fox", "t5"])
def test_a_compiled_step_is_one_graph_and_the_same(name):
    tokens = text(8, 97).to(DEVICE)
    losses = []
    for compiled in (False, True):
        model = ours(SHAPE, name).to(DEVICE)
        trainee = Trainee(model, mean_nats, compiled=compiled, fullgraph=True)
        losses.append([trainee.step(tokens).item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_training_step_never_waits_for_the_device(name):
    tokens = text(8, 97).to(DEVICE)
    trainee = Trainee(ours(SHAPE, name).to(DEVICE), mean_nats, dtype=torch.bfloat16)
    trainee.step(tokens)
    trainee.step(tokens)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainee.step(tokens)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["none", *FORMS])
@torch.no_grad()
def test_a_cache_changes_nothing(name):
    model, tokens = loud(name).to(DEVICE), text(2, 96).to(DEVICE)
    cache, parts = Cache.empty(SHAPE.n_layers), []
    for part in tokens.split([80, *[1] * 16], dim=1):
        parts.append(model.features(part, cache=cache))
    assert error(torch.cat(parts, dim=1), model.features(tokens))["relative_error"] < 1e-5


@pytest.mark.parametrize("name", ["none", *FORMS])
@torch.inference_mode()
def test_memory_grows_with_length_and_not_its_square(name):
    model = loud(name, context=16384).to(DEVICE)

    def peak(length: int) -> int:
        tokens = text(1, length + 1).to(DEVICE)
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            model(tokens[:, :-1], tokens[:, -32:])
        return torch.cuda.max_memory_allocated() - held

    blocks = 600 * 2**20  # what a dense block of scores may take at any length
    assert peak(16384) < 2.6 * peak(8192) + blocks


@pytest.mark.parametrize("form", ["fp32", "bf16"])
def test_shared_keys_take_no_square_of_memory(form):
    """Two key heads for eight of queries: where no kernel shares them PyTorch would hold all scores, 2 GiB here."""
    dtype, length = DTYPES[form] or torch.float32, 8192
    q = torch.randn(1, 8, length, 64, device=DEVICE, dtype=dtype)
    k, v = (torch.randn(1, 2, length, 64, device=DEVICE, dtype=dtype) for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    out = sdpa(q, k, v, None, 0.125, causal=True)
    assert torch.cuda.max_memory_allocated() - held < 2**28
    own, shared = (x[:, 4:5].double() if x.shape[1] == 8 else x[:, 1:2].double() for x in (q, k))
    exact = (own[:, :, -1:] @ shared.mT * 0.125).softmax(-1) @ v[:, 1:2].double()
    assert (out[:, 4:5, -1:].double() - exact).abs().max() < (1e-2 if form == "bf16" else 1e-4)
