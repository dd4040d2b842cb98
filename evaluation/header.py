"""What a file of results says once, for all of its rows: which weights read which text, and how."""

from collections.abc import Mapping
from typing import Any

from configs.check import made
from configs.schema import EvalConfig, TrainConfig
from evaluation.fields import Header
from model.transformer import Transformer

# Rows of one file agree in these. Each says for itself which code measured it, and is not measured again by the same.
IDENTITY = (
    "checkpoint_step",
    "data_hash",
    "tokenizer_hash",
    "position_settings",
    "split",
    "precision",
    "bos",
)
CODE = ("torch", "commit")  # written into a row when it is saved


def unusual(config: EvalConfig, precision: str) -> dict[str, str]:
    """What belongs into a label, since it makes other numbers: anything but the last checkpoint on the test split."""
    usual = {"split": "test", "checkpoint": "last", "precision": "fp32", "bos": "false"}
    mine = {"split": config.split, "checkpoint": str(config.checkpoint), "precision": precision}
    mine["bos"] = str(config.eval.bos).lower()
    return {key: value for key, value in mine.items() if value != usual[key]}


def header(
    label: str,
    position: Mapping[str, Any],
    trained: TrainConfig,
    config: EvalConfig,
    model: Transformer,
    **read: Any,
) -> dict[str, Any]:
    """All of `Header`; read: what is known once the run and its text are open, and which code runs (`CODE`)."""
    found = {
        "label": label,
        "position": position["name"],
        "position_settings": dict(position),
        "trained_position": trained.position["name"],
        "trained_context": trained.context_length,
        "seed": trained.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "position_parameters": sum(p.numel() for p in model.schemes.parameters()),
        "data": trained.data["name"],
        "split": config.split,
        "bos": config.eval.bos,
        **read,
    }
    return vars(made(Header, found))
