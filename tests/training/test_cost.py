"""The arithmetic of a step, the ceiling that it is held against, and when compiling is worth it."""

from dataclasses import replace

import pytest
import torch
from torch._inductor import cpp_builder, exc
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.subjects import shape
from errors import UserError
from model.transformer import Transformer
from tests.trained import records, train
from training import cost
from training.precision import Precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("length", [16, 64])
def test_model_flops_are_those_that_run(length, tied):
    """A backward pass does twice the forward's, and attention's causal half is half of its products."""
    at = shape("tiny", length)
    model = Transformer(replace(at.config, tie_embeddings=tied), {"name": "none"})
    text = torch.zeros(1, length, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(text, text)
    counts = counter.get_flop_counts()["Global"]
    attention = sum(n for product, n in counts.items() if "bmm" in str(product))
    forward = counter.get_total_flops() - attention / 2
    norms = 6 * (2 * at.n_layers + 1) * at.d_model  # parameters that no matrix product has
    found = cost.flops_per_token(model, at.config)
    assert attention > 0 and found == pytest.approx(3 * forward / length + norms)


def test_a_window_is_fewer_flops():
    """By the keys that its queries see, where a whole half counts half of the square."""
    at, window = shape("tiny", 64), 12
    layers = [{"name": "none", "window": window}, {"name": "none", "window": None}]
    none, mixed = (
        cost.flops_per_token(Transformer(at.config, settings), at.config)
        for settings in ({"name": "none"}, {"name": "hybrid", "layers": layers})
    )
    seen = [sum(min(i + 1, w) - 0.5 for i in range(64)) / 64 for w in (window, 64)]
    windowed = at.n_layers / 2  # the layers take turns
    assert none - mixed == pytest.approx(12 * at.d_model * windowed * (seen[1] - seen[0]), rel=0.02)


def test_a_ceiling_is_of_this_machine_and_draws_nothing_from_the_global_generator():
    before = torch.get_rng_state()
    found = cost.ceiling(Precision("fp32", CPU))
    assert 1e8 < found < 1e15
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("setting", [True, False])
def test_compile_as_it_was_set(setting):
    assert (
        cost.compiles(setting, 1e30, CPU) is setting and cost.compiles(setting, 1, CPU) is setting
    )


def test_compile_auto_goes_by_the_length_of_the_run():
    assert not cost.compiles("auto", cost.PAYS_FROM["cpu"] * 0.99, CPU)
    assert cost.compiles("auto", cost.PAYS_FROM["cpu"], CPU)
    assert not cost.compiles("auto", 1e30, torch.device("mps")), "never where nobody has measured"


def test_without_a_compiler(monkeypatch):
    """`auto` goes without; who asks for it is told what is missing."""
    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: raise_(exc.InvalidCxxCompiler()))
    assert not cost.compiles("auto", 1e30, CPU)
    cost.check_compile("auto", CPU)
    cost.check_compile(False, CPU)
    with pytest.raises(UserError, match=r"compile=true takes a C\+\+ compiler"):
        cost.check_compile(True, CPU)


def raise_(error: Exception) -> None:
    raise error


def test_the_metric_is_speed_by_the_ceiling(tmp_path, monkeypatch, corpus):
    monkeypatch.setattr(cost, "ceiling", lambda _: 1e12)
    monkeypatch.setattr(cost, "flops_per_token", lambda *_: 3e6)
    assert train(tmp_path, monkeypatch, *corpus, "train.steps=3", "train.log_every=1") == 0
    (folder,) = (tmp_path / "outputs").glob("*/*")
    found = [r for r in records(folder) if "train/mfu" in r]
    assert len(found) == 3
    for r in found:
        assert r["train/mfu"] == pytest.approx(r["train/tokens_per_second"] * 3e6 / 1e12)
