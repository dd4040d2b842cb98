"""The norm, the loss and a network of one number with a backward pass by hand, for eager mode on a CPU.

PyTorch's own are made of small steps there: a pass over memory for each, its result kept till the
backward pass. docs/performance.md holds whole steps against those of other people's code. Under
torch.compile, which fuses the steps itself, on a GPU, which has kernels for them, and under
autocast PyTorch's own run; `by_hand` decides.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

CACHED_LOGITS = 2**21  # so many at once: 8 MiB in float32, for a processor's cache to hold
CACHED_HIDDEN = 2**19  # numbers of a hidden layer at once


def by_hand(*tensors: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return all(x.is_cpu and x.dtype in (torch.float32, torch.float64) for x in tensors)


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        if by_hand(x, self.weight):
            return RMSNormByHand.apply(x, self.weight, self.eps)
        return super().forward(x)


def mean_nats(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log softmax(weight x)[target] over x (N, C) and targets (N,), with weight (V, C).

    Where the target is -100 (PyTorch's ignore_index) a row does not count; one at least must.
    """
    if by_hand(x, weight):
        if not (counted := targets >= 0).all():
            x, targets = x[counted], targets[counted]
        return MeanNatsByHand.apply(x, weight, targets)
    return F.cross_entropy(F.linear(x, weight).float(), targets)


def network(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """w2 relu(w1 x + b1) + b2 (H, *x.shape) of every number in x, by K hidden ones: w2 (H, K)."""
    if by_hand(x, w1, b1, w2, b2):
        return NetworkByHand.apply(x.flatten(), w1, b1, w2, b2).view(-1, *x.shape)
    return (torch.relu(x[..., None] * w1 + b1) @ w2.T + b2).movedim(-1, 0)


class RMSNormByHand(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        scale = square.div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        unit = x * scale
        product = grad * unit
        grad_weight = product.flatten(0, -2).sum(dim=0)
        mean = (product @ weight).div_(x.shape[-1]).unsqueeze(-1)
        grad_x = (grad * weight).addcmul_(unit, mean, value=-1).mul_(scale)
        return grad_x, grad_weight, None


class MeanNatsByHand(Function):
    """Gradients are found in the same pass, while a part of the logits lies in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        rows = max(1, CACHED_LOGITS // len(weight))
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        total = x.new_zeros(())
        for a, t, g in zip(x.split(rows), targets.split(rows), grad_x.split(rows), strict=True):
            p = F.log_softmax(a @ weight.T, dim=-1)
            total -= p.gather(1, t[:, None]).sum()
            p.exp_()
            p.scatter_add_(1, t[:, None], p.new_full((len(t), 1), -1.0))
            torch.mm(p, weight, out=g)
            grad_weight.addmm_(p.T, a)
        ctx.save_for_backward(grad_x, grad_weight)
        return total / len(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_x, grad_weight = ctx.saved_tensors
        scale = grad / len(grad_x)
        return grad_x * scale, grad_weight * scale, None


class NetworkByHand(Function):
    """Hidden numbers are never kept: both passes make a part of them at a time, in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        ctx.save_for_backward(x, w1, b1, w2)
        out = x.new_empty(len(w2), len(x))
        for part, y in zip(*in_parts(len(w1), x, out), strict=True):
            torch.mm(w2, hidden(part, w1, b1), out=y)
        return out.add_(b2[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, w1, b1, w2 = ctx.saved_tensors
        grad_x, grad_w1, grad_b1 = torch.empty_like(x), torch.zeros_like(w1), torch.zeros_like(b1)
        grad_w2 = torch.zeros_like(w2)
        for part, gx, g in zip(*in_parts(len(w1), x, grad_x, grad), strict=True):
            h = hidden(part, w1, b1)
            grad_w2.addmm_(g, h.T)
            before = h.sign_().mul_(w2.T @ g)  # of what the ReLU got
            torch.mv(before.T, w1, out=gx)
            grad_w1.addmv_(before, part)
            grad_b1 += before.sum(dim=1)
        return grad_x, grad_w1, grad_b1, grad_w2, grad.sum(dim=1)


def in_parts(hidden: int, *along: Tensor) -> list[tuple[Tensor, ...]]:
    """Each tensor cut along its last axis, so that `hidden` numbers for each entry fit into the cache."""
    return [x.split(max(1, CACHED_HIDDEN // hidden), dim=-1) for x in along]


def hidden(x: Tensor, w1: Tensor, b1: Tensor) -> Tensor:
    """(K, n): three quick steps; one that broadcasts twice is slower than they are."""
    return torch.outer(w1, x).add_(b1[:, None]).relu_()
