"""The fields of a result file, `eval/<label>.json`: their names, their order, and what each may hold.

Result files are read that somebody else made, so these two dataclasses are the whole of what is
believed. `configs.check.made` holds a file's values against the annotations, `__post_init__` holds
them against their ranges; either raises UserError, which names the field.
"""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from configs.check import LONGEST, made, within
from errors import UserError

MOST = 2**53  # a count: no double is exact beyond
LONG = 300  # characters of a text
BIN = re.compile(r"([1-9]\d{0,9})-([1-9]\d{0,9})", re.ASCII)


@dataclass(frozen=True)
class Header:
    """What a file says once, for all of its rows."""

    label: str
    position: str
    position_settings: dict[str, Any]
    trained_position: str
    trained_context: int
    checkpoint_step: int
    seed: int
    parameters: int
    position_parameters: int
    data: str
    split: Literal["train", "validation", "test"]
    precision: Literal["fp32", "bf16", "fp16"]
    bos: bool
    data_hash: str
    tokenizer_hash: str
    torch: str
    commit: str | None

    def __post_init__(self) -> None:
        for key in ("label", "position", "trained_position", "data"):
            _text(key, getattr(self, key), least=1)
        _code(self)
        within("trained_context", self.trained_context, 1, LONGEST)
        for key in ("checkpoint_step", "seed", "parameters", "position_parameters"):
            within(key, getattr(self, key), 0, MOST)
        for key in ("data_hash", "tokenizer_hash"):
            _hexadecimal(key, getattr(self, key), 64)


@dataclass(frozen=True)
class Row:
    """One measurement; null where there is no such number, or none that is finite."""

    protocol: Literal["same_tokens", "non_overlapping", "sliding", "per_position"]
    context_length: int
    stride: int | None
    window: int | None
    bin: str | None
    supported: bool
    tokens_scored: int
    bytes_scored: int
    nats: float | None
    loss: float | None
    ppl: float | None
    bpb: float | None
    words: int | None
    word_ppl: float | None
    ci95: list[float] | None
    ci_unit: str
    target_set: str
    torch: str
    commit: str | None

    def __post_init__(self) -> None:
        for key in ("context_length", "stride", "window"):
            if getattr(self, key) is not None:
                within(key, getattr(self, key), 1, LONGEST)
        for key in ("tokens_scored", "bytes_scored", "words"):
            if getattr(self, key) is not None:
                within(key, getattr(self, key), 0, MOST)
        if (self.stride is not None) != (self.protocol == "sliding"):
            raise UserError(f"stride={self.stride} does not fit protocol={self.protocol}")
        if (self.bin is not None) != (self.protocol == "per_position"):
            raise UserError(f"bin={self.bin} does not fit protocol={self.protocol}")
        if self.bin is not None and not _is_bin(self.bin, self.context_length):
            raise UserError(f"bin={self.bin} must be two numbers up to context_length, as 64-127")
        if self.ci95 is not None and not (len(self.ci95) == 2 and self.ci95[0] <= self.ci95[1]):
            raise UserError(f"ci95={self.ci95} must be the lower and the upper bound, or null")
        if self.tokens_scored and not self.supported:
            raise UserError(f"tokens_scored={self.tokens_scored} must be 0: unsupported")
        _text("ci_unit", self.ci_unit)
        _hexadecimal("target_set", self.target_set, 16)
        _code(self)


HEADER = tuple(field.name for field in fields(Header))
ROW = tuple(field.name for field in fields(Row))
ROW_KEY = ("protocol", "context_length", "window", "stride", "bin")


def checked(content: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and rows of a file's JSON, in the order of their fields; UserError names the wrong one."""
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise UserError("rows=... is missing or no list")
    header = made(Header, {key: value for key, value in content.items() if key != "rows"})
    rows: list[dict[str, Any]] = []
    seen: dict[tuple[Any, ...], int] = {}
    for number, values in enumerate(content["rows"]):
        if not isinstance(values, dict):
            raise UserError(f"rows[{number}]={values} must be an object")
        try:
            rows.append(vars(made(Row, values)))
        except UserError as error:
            raise UserError(f"rows[{number}]: {error}") from None
        first = seen.setdefault(tuple(rows[-1][key] for key in ROW_KEY), number)
        if first != number:
            raise UserError(f"rows[{number}] is the same measurement as rows[{first}]")
    return vars(header), rows


def _is_bin(text: str, length: int) -> bool:
    found = BIN.fullmatch(text)
    return bool(found) and int(found[1]) <= int(found[2]) <= length


def _code(stored: Header | Row) -> None:
    for key in ("torch", "commit"):
        _text(key, getattr(stored, key) or "")


def _text(key: str, value: str, least: int = 0) -> None:
    if not least <= len(value) <= LONG or value != value.encode("utf-8", "ignore").decode():
        raise UserError(f"{key}={value} must be text of {least} to {LONG} characters")


def _hexadecimal(key: str, value: str, digits: int) -> None:
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
        raise UserError(f"{key}={value} must be {digits} hexadecimal digits")
