"""Which kernel computes each scheme, what is never held in memory, and the functions with a backward pass by hand.

Seen below autograd, operator by operator: what is asserted is what ran, not what was meant to.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from model import attention, kernels
from model.config import ModelConfig
from model.transformer import Transformer
from tests.conftest import ROOT, SCHEMES

T = 320  # more than a block of a folded clock holds
FLASH = "_scaled_dot_product_flash_attention_for_cpu.default"
SHAPE = ModelConfig(
    vocab_size=97, context_length=T, d_model=32, n_layers=2, n_heads=2, n_kv_heads=2, d_ff=48,
    norm_eps=1e-5, tie_embeddings=True, softmax_scale=None,
)  # fmt: skip


class Watch(TorchDispatchMode):
    """The names of all operators that run; how often attention got a mask; the largest new tensor;
    the operators that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[str] = []
        self.waits: list[str] = []
        self.masks, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.")
        self.ran.append(name)
        if name == FLASH:
            self.masks += (kwargs or {}).get("attn_mask") is not None
        target = (kwargs or {}).get("device")
        moves = name == "_to_copy.default" and target is not None and target != args[0].device
        if moves and not (kwargs or {}).get("non_blocking"):
            self.waits.append(name)
        out = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves(args) if torch.is_tensor(x)}
        for x in tree_leaves(out):
            if torch.is_tensor(x) and x.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        return out


def build(name: str) -> Transformer:
    settings = yaml.safe_load((ROOT / f"configs/position/{name}.yaml").read_text())
    model = Transformer(SHAPE, settings)
    model.reset(0)
    return model


@contextmanager
def watched(training: bool) -> Iterator[Watch]:
    with torch.set_grad_enabled(training), Watch() as watch:
        yield watch


def run(model: Transformer, watch_training: bool, length: int = T) -> Watch:
    text = torch.randint(
        SHAPE.vocab_size, (1, length + 1), generator=torch.Generator().manual_seed(0)
    )
    with watched(watch_training) as watch:
        loss = model(text[:, :-1], text[:, 1:], mean=watch_training)
        if watch_training:
            loss.backward()
    return watch


def learns_scores(model: Transformer) -> bool:
    """Its scores are learned tables: SDPA has a gradient for those in its plain formula alone."""
    return any(
        p.form in ("distance", "pair") and any(True for _ in p.parameters())
        for p in model.positions
    )


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_the_kernel_is_the_fused_one(name, training):
    """Only learned tables train on the plain formula; no other scheme ever leaves the fused kernel."""
    model = build(name)
    watch = run(model, training)
    plain = training and learns_scores(model)
    assert (FLASH in watch.ran) != plain
    assert any(n.startswith("_safe_softmax.") for n in watch.ran) == plain


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_without_a_mask_where_the_form_needs_none(name, training):
    """A layer that sees everything, with no score or a clock, is plain causal attention: one call, maskless."""
    model = build(name)
    watch = run(model, training)
    free = [p.form in ("none", "clock") and p.window is None for p in model.positions]
    if all(free):
        assert watch.masks == 0 and watch.ran.count(FLASH) == len(free)
    elif not (training and learns_scores(model)):
        assert watch.masks > 0


@pytest.mark.parametrize("name", SCHEMES)
def test_evaluation_memory_grows_with_the_length_and_not_with_its_square(name):
    """No tensor of an evaluation grows faster than the text, once the longest block is reached."""
    model, lengths = build(name), (2048, 4096)
    if model.max_length is not None:
        return  # as long as its table
    small, large = (run(model, False, n).largest for n in lengths)
    assert large <= 2.1 * small
    pairs = any(p.form == "pair" for p in model.positions)
    most = attention.MOST_ELEMENTS["pair"] if pairs else 1024 * lengths[1] / 4 - 1
    assert large <= most, "a block of scores was copied: it is to be a view, or small"


def test_logits_are_made_for_scored_tokens_alone():
    model = build("none")
    text = torch.zeros(1, 200, dtype=torch.long)
    with watched(False) as watch:
        model(text, text[:, :3])
    assert watch.largest < 200 * SHAPE.vocab_size


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_the_last_layer_is_computed_for_scored_tokens_alone(name):
    """It is as if all were scored, for less work: of the others the last layer needs keys and values alone."""
    model = build(name)
    text = torch.randint(SHAPE.vocab_size, (2, T + 1))
    segments = (torch.arange(T) >= 200).long().expand(2, T)
    for given in ({}, {"window": 50}, {"segments": segments}):
        all_ = model(text[:, :-1], text[:, 1:], **given)
        for scored in (1, 7, T - 1):
            found = model(text[:, :-1], text[:, -scored:], **given)
            assert torch.allclose(found, all_[:, -scored:], atol=5e-6)
    work = []
    for scored in (T, 7):
        with FlopCounterMode(display=False) as counter:
            model.features(text[:, :-1], last=scored)
        work.append(counter.get_total_flops())
    layer = 2 * 2 * T * (2 * 32 * 32 + 3 * 32 * 48)  # of two texts: wq, wo and the feed-forward
    assert work[0] - work[1] > 0.9 * layer


@pytest.mark.parametrize("name", SCHEMES)
@torch.no_grad()
def test_a_forward_pass_never_waits_for_the_device(name, monkeypatch):
    """Seen without a GPU: the meta device has no numbers to wait for, and refuses whoever asks."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # knows no meta device
    model = build(name).to("meta")
    text = torch.empty(2, T, dtype=torch.long, device="meta")
    with Watch() as watch:
        for given in ({}, {"window": 50}, {"segments": text}, {"pos": text[0]}):
            model(text, text, **given)
            model(text, text[:, :7], **given)
    assert not watch.waits


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 8)])
def test_rms_norm_by_hand(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    norm = kernels.RMSNorm(shape[-1], eps=1e-5, dtype=torch.float64)
    torch.nn.init.uniform_(norm.weight, 0.5, 2)
    assert torch.autograd.gradcheck(
        lambda x, w: kernels.RMSNormByHand.apply(x, w, 1e-5), (x, norm.weight)
    )
    assert torch.allclose(norm(x), F.rms_norm(x, x.shape[-1:], norm.weight, 1e-5), atol=1e-12)


def test_rms_norm_of_nothing_and_of_huge_numbers():
    norm = kernels.RMSNorm(4, eps=1e-5)
    for value in (0.0, 1e-12, 1e4, 1e15):
        x = torch.full((1, 4), value)
        assert torch.allclose(norm(x), F.rms_norm(x, (4,), norm.weight, 1e-5), rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 100], ids=lambda n: f"{n} rows at once")
def test_mean_nats_by_hand(rows, monkeypatch):
    monkeypatch.setattr(kernels, "CACHED_LOGITS", rows * 11)
    x, weight = (torch.randn(n, 6, dtype=torch.float64, requires_grad=True) for n in (13, 11))
    targets = torch.randint(11, (13,))
    assert torch.autograd.gradcheck(lambda x, w: kernels.mean_nats(x, w, targets), (x, weight))
    expected = F.cross_entropy(x @ weight.T, targets)
    assert torch.allclose(kernels.mean_nats(x, weight, targets), expected, atol=1e-12)


@pytest.mark.parametrize("numbers", [3, 12, 1000], ids=lambda n: f"{n} hidden numbers at once")
def test_network_by_hand(numbers, monkeypatch):
    monkeypatch.setattr(kernels, "CACHED_HIDDEN", numbers)
    shapes = (7, 2), (5,), (5,), (3, 5), (3,)
    x, w1, b1, w2, b2 = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    assert torch.autograd.gradcheck(kernels.network, (x, w1, b1, w2, b2))
    expected = (torch.relu(x[..., None] * w1 + b1) @ w2.T + b2).movedim(-1, 0)
    assert torch.allclose(kernels.network(x, w1, b1, w2, b2), expected, atol=1e-12)


def test_mean_nats_of_a_hopeless_guess_is_finite():
    """A probability below float32's smallest number has a logarithm all the same."""
    x, weight = torch.tensor([[300.0]]), torch.tensor([[1.0], [-1.0]])
    assert kernels.mean_nats(x, weight, torch.tensor([1])).item() == 600


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_takes_pytorchs_own(dtype, monkeypatch):
    model = build("rope")
    text = torch.randint(SHAPE.vocab_size, (2, 17))
    exact = model(text[:, :-1], text[:, 1:], mean=True)
    for function in (kernels.RMSNormByHand, kernels.MeanNatsByHand):
        monkeypatch.setattr(function, "apply", None)
    with torch.autocast("cpu", dtype=dtype):
        rough = model(text[:, :-1], text[:, 1:], mean=True)
    assert rough.dtype == torch.float32
    assert abs(exact - rough) < 2e-2
