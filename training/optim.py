"""The optimizer, its parameter groups and its schedule.

Weight decay acts on the weights of linear layers alone: not on embeddings, norms or anything that belongs to a position
scheme. The schedule is a pure function of the step, so that resuming needs nothing but the step.
"""

import math

import torch
from torch import nn

from configs.check import LONGEST, within
from configs.schema import OptimSettings
from errors import UserError


def build_optimizer(model: nn.Module, settings: OptimSettings) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`; the learning rate is set by the loop."""
    for key in ("lr", "eps"):
        if getattr(settings, key) <= 0:
            raise UserError(f"optim.{key}={getattr(settings, key)} must be above 0")
    for key in ("min_lr", "weight_decay", "warmup_steps"):
        if getattr(settings, key) < 0:
            raise UserError(f"optim.{key}={getattr(settings, key)} must not be negative")
    if settings.min_lr > settings.lr:
        raise UserError(
            f"optim.min_lr={settings.min_lr} must not be above optim.lr={settings.lr}, from where the cosine comes down"
        )
    within("optim.warmup_steps", settings.warmup_steps, 0, LONGEST)
    for key in ("beta1", "beta2"):
        if not 0 <= getattr(settings, key) < 1:
            raise UserError(f"optim.{key}={getattr(settings, key)} must be from 0 to below 1")
    if settings.clip <= 0:
        raise UserError(f"optim.clip={settings.clip} must be above 0")
    within("optim.weight_decay", settings.weight_decay, 0, 1e3)
    groups = parameter_groups(model, settings.weight_decay)
    betas = (settings.beta1, settings.beta2)
    return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two groups that hold every parameter exactly once.

    An embedding that is tied to the output layer is an embedding.
    """
    undecayed = {id(p) for p in model.get_submodule("schemes").parameters()}
    undecayed |= {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)} - undecayed
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if id(p) in linear], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) not in linear], "weight_decay": 0.0},
    ]


def learning_rate(step: int, steps: int, settings: OptimSettings) -> float:
    """Linear warm-up to lr over the first warmup_steps, then a cosine that reaches min_lr at the last of `steps`."""
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, steps - 1 - settings.warmup_steps)
    return settings.min_lr + (settings.lr - settings.min_lr) * (1 + math.cos(math.pi * done)) / 2
