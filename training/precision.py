"""Which number formats a run computes in, chosen by the device.

Weights stay in float32 always: mixed precision means autocast around the forward pass, and loss scaling where
the format is float16. On a CPU bfloat16 autocast can be many times slower than float32, so `auto` means
float32 there.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from configs.check import nearest
from errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(setting: str) -> torch.device:
    """auto: a CUDA GPU where there is one, else the CPU."""
    if setting == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", setting):
        raise UserError(f"device={setting} is none of auto, cpu, cuda, cuda:<number>")
    try:
        device = torch.device(setting)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device={setting} cannot be used here: {reason}") from None
    return device


@dataclass(frozen=True)
class Precision:
    name: str  # fp32, bf16 or fp16
    device: torch.device

    @classmethod
    def choose(cls, setting: str, device: torch.device) -> "Precision":
        """auto: bf16 on GPUs that have it, fp16 on those that don't, fp32 elsewhere."""
        if setting == "auto":
            if device.type != "cuda":
                return cls("fp32", device)
            return cls("bf16" if torch.cuda.is_bf16_supported(False) else "fp16", device)
        if setting not in DTYPES:
            raise UserError(f"precision={setting} is unknown{nearest(setting, [*DTYPES, 'auto'])}")
        return cls(setting, device)

    def autocast(self) -> AbstractContextManager:
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.name])

    def scaler(self) -> torch.amp.GradScaler:
        """Scales the loss for float16; does nothing for the other formats."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")
