"""The typed schema of every command's configuration. Types stand here, values in YAML, so that each default
is said once.

The groups `position`, `data`, `tokenizer` and `tracker` are plain mappings here: the class that their `name`
stands for is their schema (configs/check.py). This file imports neither torch nor Hydra, so that `--help`
answers at once.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from configs.check import LONGEST, within
from errors import UserError


@dataclass
class ModelSettings:
    d_model: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_ff: int
    norm_eps: float
    tie_embeddings: bool
    softmax_scale: Any  # a number, log, or null: ModelConfig checks it


@dataclass
class OptimSettings:
    lr: float
    min_lr: float
    warmup_steps: int
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float


@dataclass
class TrainSettings:
    steps: int
    batch_size: int
    accumulate: int
    log_every: int
    eval_every: int
    eval_tokens: int
    save_every: int
    keep: int
    position_range: int | None

    def __post_init__(self) -> None:
        for key in ("steps", "batch_size", "accumulate", "log_every", "eval_tokens", "keep"):
            if getattr(self, key) < 1:
                raise UserError(f"train.{key}={getattr(self, key)} must be at least 1")
        for key in ("eval_every", "save_every"):
            if getattr(self, key) < 0:
                raise UserError(f"train.{key}={getattr(self, key)} must be 0 (never) or more")
        within("train.batch_size", self.batch_size, 1, 2**20)
        if self.batch_size % self.accumulate:
            raise UserError(
                f"train.accumulate={self.accumulate} must divide train.batch_size={self.batch_size}"
            )


@dataclass
class TrainConfig:
    context_length: int
    seed: int
    precision: str
    tf32: bool
    compile: bool | Literal["auto"]
    device: str
    resume: str | None
    init_from: str | None
    model: ModelSettings
    position: dict[str, Any]
    data: dict[str, Any]
    tokenizer: dict[str, Any]
    optim: OptimSettings
    tracker: dict[str, Any]
    train: TrainSettings

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed={self.seed} must be from 0 to 2147483647")
        for key in ("resume", "init_from"):
            if getattr(self, key) == "":
                raise UserError(f"{key}= is empty: name a run folder, or null")
        within("context_length", self.context_length, 1, LONGEST)
        reach = self.train.position_range
        if reach is not None and reach < self.context_length:
            raise UserError(
                f"train.position_range={reach} must be at least context_length={self.context_length}"
            )
        within("train.position_range", reach or 1, 1, LONGEST)


@dataclass
class EvalSettings:
    targets: int
    block: int
    multiples: list[float]
    stride: int | None
    bos: bool
    tokens_per_batch: int


@dataclass
class EvalConfig:
    run: str | list[str]  # paths or globs
    checkpoint: str | int  # last, best, or a step
    split: str
    lengths: list[int] | None
    protocols: list[str]
    windows: list[Any]  # full, trained, or a number of tokens
    device: str
    precision: str
    eval: EvalSettings
    tracker: dict[str, Any]
    position: dict[str, Any] = field(default_factory=dict)  # empty: as trained
    data: dict[str, Any] = field(default_factory=dict)  # cache_dir alone: the rest is the run's

    def __post_init__(self) -> None:
        if not self.run:
            raise UserError("run is empty: name a run folder, or latest")
        if not self.protocols:
            raise UserError("protocols is empty: name some, for example [same_tokens]")


@dataclass
class GenerateConfig:
    run: str
    checkpoint: str | int  # last, best, or a step
    prompt: str
    tokens: int
    temperature: float
    top_k: int | None
    seed: int
    device: str
    precision: str
    position: dict[str, Any] = field(default_factory=dict)


@dataclass
class CompareConfig:
    runs: list[str]
    out: str
    protocol: str
    baseline: str | None
    claim: str
    tracker: dict[str, Any]
