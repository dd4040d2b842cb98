"""Parts of benchmarks/gpu.py that run whole models: training, evaluation, decoding, against the card's ceiling.

Utilisation is model FLOPs (training/cost.py) by what the same card does with a large bfloat16 matrix
product of random numbers. Sizes: 124M is GPT-2's shape with SwiGLU and a vocabulary of 50,304.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from benchmarks.evaluation import LAST
from benchmarks.subjects import SCHEMES, Shape, Trainee, mean_nats, ours, shape
from model.cache import Cache
from training.cost import flops_per_token
from training.precision import Precision

T = TypeVar("T")
Cases = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]  # what it is, and the work


@dataclass
class Bench:
    device: torch.device
    tiny: bool
    bf16_tflops: float | None = None  # the ceiling, once it is measured
    none_seconds: float | None = None  # a step without positions, of `schemes`

    def pick(self, full: T, tiny: T) -> T:
        return tiny if self.tiny else full

    def time(self, work: Callable[[], object], repeats: int, warm: int = 2) -> float:
        """Median seconds of `repeats` calls, the device finished."""
        for _ in range(warm):
            work()
        found = []
        for _ in range(repeats):
            self.finish()
            began = time.perf_counter()
            work()
            self.finish()
            found.append(time.perf_counter() - began)
        return statistics.median(found)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_gib(self) -> float | None:
        return torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else None

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()


@contextmanager
def multiplying(tf32: bool) -> Iterator[None]:
    """float32 matrices in TF32 or not, whatever ends the case."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def ceiling(bench: Bench) -> Cases:
    """Matrix products of random numbers, and a copy."""
    n = bench.pick(8192, 64)

    def product(dtype: torch.dtype, tf32: bool) -> dict[str, Any]:
        a, b = (torch.randn(n, n, device=bench.device, dtype=dtype) for _ in range(2))
        with multiplying(tf32):
            seconds = bench.time(lambda: a @ b, repeats=10)
        tflops = 2 * n**3 / seconds / 1e12
        if dtype == torch.bfloat16:
            bench.bf16_tflops = tflops
        return {"tflops": tflops}

    def copy() -> dict[str, Any]:
        source = torch.randn(bench.pick(2**29, 2**10), device=bench.device)
        target = torch.empty_like(source)
        seconds = bench.time(lambda: target.copy_(source), repeats=10)
        return {"gb_per_second": 2 * source.nbytes / seconds / 1e9}

    for name, dtype, tf32 in (
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, False),
        ("fp32", torch.float32, False),
        ("tf32", torch.float32, True),
    ):
        yield (
            {"case": f"matrix product {n}, {name}"},
            lambda dtype=dtype, tf32=tf32: product(dtype, tf32),
        )
    yield {"case": "copy"}, copy


def train(
    bench: Bench,
    scheme: str,
    at: Shape,
    batch: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    compiled: bool,
    steps: int,
) -> dict[str, Any]:
    """Speed of a training step under autocast, as train.py takes it."""
    model = ours(at, scheme).to(bench.device)
    compiled = compiled and not bench.tiny
    trainee = Trainee(model, mean_nats, compiled=compiled, fullgraph=True, dtype=dtype)
    tokens = torch.randint(at.vocab_size, (batch, at.context + 1), device=bench.device)
    bench.forget_peak()
    began = time.perf_counter()
    first = trainee.step(tokens).item()
    start = time.perf_counter() - began
    seconds = bench.time(lambda: trainee.step(tokens), repeats=steps)
    rate = flops_per_token(model, at.config) * batch * at.context / seconds / 1e12
    return {
        "compiled": compiled,
        "first_step_seconds": start,
        "step_seconds": seconds,
        "tokens_per_second": batch * at.context / seconds,
        "tflops": rate,
        "utilisation": rate / bench.bf16_tflops if bench.bf16_tflops else None,
        "peak_gib": bench.peak_gib(),
        "first_loss": first,
        "last_loss": trainee.step(tokens).item(),
        "loss_scale": trainee.scaler.get_scale() if trainee.scaler.is_enabled() else None,
    }


def training(bench: Bench) -> Cases:
    """124M in bfloat16, as it is and compiled, at two lengths."""
    tokens, steps = bench.pick(16384, 64), bench.pick(20, 1)
    for scheme, length, compiled in (
        ("rope", bench.pick(1024, 16), True),
        ("rope", bench.pick(1024, 16), False),
        ("rope", bench.pick(4096, 32), True),
        ("alibi", bench.pick(4096, 32), True),
        ("none", bench.pick(4096, 32), True),
    ):
        at, batch = shape(bench.pick("124M", "tiny"), length), tokens // length
        about = {"scheme": scheme, "length": length, "batch": batch, "dtype": "bf16"}
        work = lambda s=scheme, a=at, b=batch, c=compiled: train(  # noqa: E731
            bench, s, a, b, compiled=c, steps=steps
        )
        yield about | {"case": "compiled" if compiled else "eager"}, work


def half(bench: Bench) -> Cases:
    """float16 with a GradScaler: the losses must be finite and fall."""
    at = shape(bench.pick("124M", "tiny"), bench.pick(1024, 16), n_layers=bench.pick(4, 2))
    for scheme in ("rope", "alibi", "fox", "t5"):
        about = {"scheme": scheme, "length": at.context, "dtype": "fp16"}
        work = lambda s=scheme: train(  # noqa: E731
            bench, s, at, bench.pick(16, 2), dtype=torch.float16, compiled=False, steps=5
        )
        yield about, work


def schemes(bench: Bench) -> Cases:
    """Every scheme's step against none's: two layers of 124M's, where compiling is quick."""
    length = bench.pick(2048, 16)
    at = shape(bench.pick("124M", "tiny"), length, n_layers=2, vocab_size=bench.pick(8192, 64))

    def step(scheme: str) -> dict[str, Any]:
        steps = bench.pick(10, 1)
        found = train(bench, scheme, at, bench.pick(16, 2), compiled=True, steps=steps)
        if bench.none_seconds is None and scheme == "none":
            bench.none_seconds = found["step_seconds"]
        known = bench.none_seconds
        return found | {"of_none": found["step_seconds"] / known if known else None}

    # The forms first, in case time runs out; none again at the end shows how far to trust a ratio.
    first = ["none", "rope", "alibi", "fox", "t5", "fire", "sinusoidal", "learned", "hybrid"]
    for scheme in [*first, *(s for s in SCHEMES if s not in first), "none"]:
        yield {"scheme": scheme, "length": length}, lambda scheme=scheme: step(scheme)


def evaluation(bench: Bench) -> Cases:
    """One text of up to 65,536 tokens: time and memory, all scored or the last 32; float32 is eval.py's default."""
    lengths = bench.pick([1024, 8192, 65536], [LAST, 2 * LAST])

    @torch.inference_mode()
    def read(scheme: str, length: int, kind: str, form: str) -> dict[str, Any]:
        model = ours(shape(bench.pick("124M", "tiny"), length), scheme).to(bench.device).eval()
        text = torch.randint(model.config.vocab_size, (1, length + 1), device=bench.device)
        targets = text[:, 1:] if kind == "all" else text[:, -LAST:]
        bench.forget_peak()
        held = bench.peak_gib()

        def work() -> None:
            with Precision(form, bench.device).autocast():
                model(text[:, :-1], targets)

        seconds = bench.time(work, repeats=1 if length > 8192 else 3, warm=1)
        peak = bench.peak_gib()
        above = None if held is None or peak is None else peak - held
        return {"seconds": seconds, "tokens_per_second": length / seconds, "gib_above_model": above}

    for length in lengths:
        for scheme in ("none", "rope", "alibi", "fox", "t5", "fire"):
            for kind, form in (("all", "bf16"), ("last", "bf16"), ("last", "fp32")):
                about = {"scheme": scheme, "length": length, "scored": kind, "dtype": form}
                yield about, lambda s=scheme, n=length, k=kind, f=form: read(s, n, k, f)


def decode(bench: Bench) -> Cases:
    """Milliseconds a token with a cache, one text, after a prompt."""
    prompt, new = bench.pick(1024, 8), bench.pick(64, 2)

    @torch.inference_mode()
    def write(scheme: str) -> dict[str, Any]:
        at = shape(bench.pick("124M", "tiny"), prompt + 2 * new + 8)
        model = ours(at, scheme).to(bench.device).eval()
        cache = Cache.empty(at.n_layers)
        text = torch.randint(at.vocab_size, (1, prompt), device=bench.device)

        def forward(tokens: torch.Tensor) -> torch.Tensor:
            with torch.autocast(bench.device.type, dtype=torch.bfloat16):
                x = model.features(tokens, cache=cache, last=1)
                return model.head(x[:, -1]).argmax(-1, keepdim=True)

        began = time.perf_counter()
        token = forward(text)
        bench.finish()
        first = time.perf_counter() - began
        seconds = bench.time(lambda: forward(token), new)
        return {"prompt_seconds": first, "token_milliseconds": 1000 * seconds}

    for scheme in ("none", "rope", "alibi", "fox", "t5", "fire"):
        yield {"scheme": scheme, "prompt": prompt, "dtype": "bf16"}, lambda s=scheme: write(s)
