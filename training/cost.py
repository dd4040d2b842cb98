"""What a training step costs by arithmetic, what the device can do, and whether compiling pays.

Model FLOPs a token of a training step: 6 (N + V d) + 6 L T d, with N the parameters beside embeddings and output
layer, V the vocabulary, d the width, L the layers, T the context, of whose square the causal half counts (Kaplan
et al. 2020, arXiv 2001.08361, appendix; 2 operations a multiplication, and backward twice forward). In a layer with
a window of w < T keys, T counts as w (2 - w / T). What a position scheme computes counts as nothing. `train/mfu` is
their rate by that of a matrix product, measured on the same device as the run starts: no table of devices' promises
to go stale.
"""

import statistics
import time

import torch
from torch import nn

from errors import UserError
from model.config import ModelConfig
from model.transformer import Transformer
from training.precision import DTYPES, Precision

# From how many model FLOPs on `auto` compiles (docs/performance.md, "Compiled"). On a CPU half a minute of compiling
# wins 2 to 5 % of a step at 10M parameters, and nothing at 3M, where so long a run loses 1 % by it. On a GPU nothing
# is known: never.
PAYS_FROM = {"cpu": 2e14}


def matrix_parameters(model: nn.Module) -> int:
    """Parameters beside embeddings and the output layer: N. Of other people's models, where the two are tied."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    if isinstance(model, Transformer):  # positions are tables too
        tables |= {id(p) for p in [model.head.weight, *model.schemes.parameters()]}
    return sum(p.numel() for p in model.parameters() if id(p) not in tables)


def flops_per_token(model: nn.Module, config: ModelConfig) -> int:
    """Model FLOPs of a training step by its tokens, of a model of this shape, ours or another's.

    The output layer counts, tied or not.
    """
    matrices = matrix_parameters(model) + config.vocab_size * config.d_model
    T, layers = config.context_length, [None] * config.n_layers
    if isinstance(model, Transformer):
        layers = [position.window for position in model.positions]
    windows = [T if window is None else min(window, T) for window in layers]
    return round(6 * matrices + 6 * config.d_model * sum(w * (2 - w / T) for w in windows))


def ceiling(precision: Precision) -> float:
    """FLOPs a second of a square matrix product: the median of five.

    In the run's format; on a CPU in float32, since it may only pretend to know the others and take seconds for it.
    """
    device, gpu = precision.device, precision.device.type == "cuda"
    dtype, size = (DTYPES[precision.name], 8192) if gpu else (torch.float32, 512)
    generator = torch.Generator(device).manual_seed(0)  # zeros would be quicker, on some GPUs
    draw = lambda: torch.randn(size, size, generator=generator, device=device, dtype=dtype)  # noqa: E731
    a, b = draw(), draw()

    def product() -> float:
        began = time.perf_counter()
        torch.mm(a, b)[0, 0].item()  # waits for a GPU
        return time.perf_counter() - began

    product()
    return 2 * size**3 / statistics.median(product() for _ in range(5))


def compiles(setting: bool | str, flops: float, device: torch.device) -> bool:
    """Whether a run of so many model FLOPs a process is compiled: as it was set; for `auto` where it pays and can be.

    By a run's whole length and not what is left of it, so that one that goes on to the same end computes as before.
    """
    if setting != "auto":
        return bool(setting)
    return flops >= PAYS_FROM.get(device.type, float("inf")) and can_compile(device)


def check_compile(setting: bool | str, device: torch.device) -> None:
    """UserError where compile=true is set and what it takes is not here."""
    if setting is True and not can_compile(device):
        raise UserError(
            "compile=true takes a C++ compiler (g++, or what CXX names), and there is none here: "
            "install one, or set compile=false"
        )


def can_compile(device: torch.device) -> bool:
    from torch._inductor import cpp_builder, exc

    if device.type != "cpu":
        return True
    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return False
    return True
