"""Reads the two files of an evaluation, `eval/<label>.json` and `.npz`, and believes neither.

They may come from anybody. So the JSON is strict and of bounded size (no NaN, no number that
overflows, no key twice); the arrays are exactly those that we write, read
without pickle, and their declared sizes are held against the rows before any memory is taken; and
what a row says must follow from the scores that it stands for.
"""

import json
import math
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO
from zipfile import BadZipFile, ZipFile

import numpy as np

from errors import UserError, printable
from evaluation.fields import checked
from evaluation.protocols import Scores
from storage import read_bounded

COLUMNS = {"nats": "<f4", "document": "<i4", "index": "<i4", "bytes": "<i4", "row": "<i4"}
JSON_BYTES = 2**24  # ten thousand rows and more
MOST_SCORES = 2**27  # 2.7 GB of arrays
HEAD = 1024  # of a .npy: 128 bytes hold ours
Row = dict[str, Any]
_DAMAGE = (OSError, ValueError, KeyError, EOFError, RuntimeError, SyntaxError, TokenError)
_DAMAGE += (BadZipFile, zlib.error)


def read(path: Path) -> tuple[Row, list[Row], list[Scores]]:
    """Header, rows, and the scores of each row; UserError is one line that names file and field."""
    at = path
    try:
        header, rows = checked(_json(path))
        if header["label"] != path.stem:
            raise UserError(f"label={header['label']} is not the name of the file")
        at = path.with_suffix(".npz")
        return header, rows, _scores(at, [row["tokens_scored"] for row in rows])
    except FileNotFoundError as error:
        raise UserError(_line(at, "no such result file; run eval.py")) from error
    except UserError as error:
        # how to quote on a command line is no help here
        reason = str(error).partition(": put it in quotes")[0]
        raise UserError(_line(at, f"{_short(reason)}; run eval.py again")) from None
    except _DAMAGE as error:
        raise UserError(_line(at, f"damaged ({_short(str(error))}); run eval.py again")) from error


def _line(path: Path, said: str) -> str:
    return printable(f"{path}: {said}")


def _short(text: str) -> str:
    return text if len(text) < 300 else f"{text[:200]} ... {text[-90:]}"


def _json(path: Path) -> Any:
    return json.loads(
        read_bounded(path, JSON_BYTES).decode(),
        parse_constant=_refuse,
        parse_float=_finite,
        parse_int=_whole,
        object_pairs_hook=_once,
    )


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits} is too large a number")
    return value


def _whole(digits: str) -> int:
    if len(digits) > 19:
        raise ValueError(f"{digits} is too large a number")
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)} stands there twice")
    return found


def _scores(path: Path, counts: list[int]) -> list[Scores]:
    """The scores of rows that have so many each, cut from the columns of the npz."""
    total = sum(counts)
    if total > MOST_SCORES:
        raise UserError(f"tokens_scored: {total:,} in all rows are too many")
    with ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        if sorted(info.filename for info in archive.infolist()) != sorted(
            f"{c}.npy" for c in COLUMNS
        ):
            raise ValueError(f"it must hold {', '.join(COLUMNS)} and nothing else")
        if any(info.file_size > 4 * total + HEAD for info in members.values()):
            raise ValueError("more scores than its .json has")
        columns = {}
        for name, kind in COLUMNS.items():
            with archive.open(f"{name}.npy") as file:
                columns[name] = _array(file, name, np.dtype(kind), total)  # type: ignore[arg-type]
    row = columns.pop("row")
    if not np.array_equal(row, np.repeat(np.arange(len(counts)), counts)):
        raise ValueError("row: other numbers of scores than its .json has")
    _in_order(row, columns)
    ends = np.cumsum(counts)
    parts = [slice(end - n, end) for end, n in zip(ends.tolist(), counts, strict=True)]
    whole = Scores(**columns)
    return [whole.select(part) for part in parts]


def _array(file: BinaryIO, name: str, kind: np.dtype, total: int) -> np.ndarray:
    """One .npy, (total,) of this kind and of no other; np.load would take the header's word for memory."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{name}: no array of version 1.0")
    shape, _, found = np.lib.format.read_array_header_1_0(file)
    if shape != (total,) or found != kind:
        raise ValueError(f"{name}: {found} {shape} must be {kind} {(total,)}")
    data = file.read()
    if len(data) != total * kind.itemsize:
        raise ValueError(f"{name}: {len(data)} bytes must be {total * kind.itemsize}")
    return np.frombuffer(data, kind)


def _in_order(row: np.ndarray, columns: dict[str, np.ndarray]) -> None:
    for name, least in (("document", 0), ("index", 1), ("bytes", 0)):
        if len(row) and columns[name].min() < least:
            raise ValueError(f"{name}: {columns[name].min()} is below {least}")
    # of two neighbours in a row the second is further on: no token twice, documents in order
    same_row, ahead = np.diff(row) == 0, np.diff(columns["document"])
    on = (ahead > 0) | ((ahead == 0) & (np.diff(columns["index"]) > 0))
    if not on[same_row].all():
        raise ValueError("document, index: not sorted, or a token twice")
