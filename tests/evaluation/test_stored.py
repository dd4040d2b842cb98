"""Result files that somebody else made: each wrong thing in them is one line that names file and field."""

import json
import re
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest

from errors import UserError
from evaluation.fields import Header, Row
from tests.evaluation.report_runs import flat, report, write_run

VALUES = {
    int: 5,
    float: 1.5,
    str: "x\n\x1b[31m",
    bool: True,
    type(None): None,
    list: [1],
    dict: {"a": 1},
    "negative": -1,
    "huge": 10**18,
    "long": "y" * 10**6,
    "half a pair": "\ud800",
}
FIELDS = [(schema, field) for schema in (Header, Row) for field in fields(schema)]
NAMES = [f"{schema.__name__}-{field.name}" for schema, field in FIELDS]


def allowed(kind: typing.Any) -> set:
    """Of VALUES those whose type the annotation allows; a Literal and a list of bounds allow none of them."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return set().union(*map(allowed, typing.get_args(kind)))
    origin = typing.get_origin(kind)
    return {float: {int, float}, dict[str, typing.Any]: {dict}}.get(
        kind, set() if origin else {kind}
    )


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", loss=flat, lengths=(64, 128), protocols=("same_tokens",))


def refused(run: Path) -> str:
    """What comparing the run says, in one line that a terminal can show."""
    with pytest.raises(UserError) as error:
        report(run)
    said = str(error.value)
    assert said.isprintable() and len(said) < 700, said
    assert said.endswith(("run eval.py again", "put a copy in its place", "remove it"))
    return said


def edit(run: Path, change: Callable[[dict], object]) -> None:
    path = run / "eval/rope.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(("schema", "field"), FIELDS, ids=NAMES)
def test_a_field_of_a_wrong_type_is_named(run, schema, field):
    original = (run / "eval/rope.json").read_text()
    wrong = {kind: value for kind, value in VALUES.items() if kind not in allowed(field.type)}
    assert len(wrong) >= 8
    at, place = ("", ()) if schema is Header else ("rows[1]: ", ("rows", 1))
    for value in wrong.values():

        def change(content: dict, value=value) -> None:
            for key in place:
                content = content[key]
            content[field.name] = value

        (run / "eval/rope.json").write_text(original)
        edit(run, change)
        said = refused(run)
        # a row of the right types that speaks of other scores is found by its place
        assert re.search(rf"rope\.json: ({re.escape(at)}|rows\[1\]\.){field.name}=", said), said


@pytest.mark.parametrize(("schema", "field"), FIELDS, ids=NAMES)
def test_a_missing_field_and_one_too_many_are_named(run, schema, field):
    def part(content: dict) -> dict:
        return content if schema is Header else content["rows"][0]

    original = (run / "eval/rope.json").read_text()
    edit(run, lambda content: part(content).pop(field.name))
    assert f"{field.name} is missing" in refused(run)
    (run / "eval/rope.json").write_text(original)
    edit(run, lambda content: part(content).update({field.name + "_": 1}))
    assert f"{field.name}_ is no known key" in refused(run)


ROW_FAULTS = {
    "stride": 32,
    "bin": "1-1",
    "context_length": 0,
    "ci95": [2.0, 1.0],
    "supported": False,
    "target_set": "0" * 16,
    "tokens_scored": 4095,
    "bytes_scored": 1,
    "nats": None,
    "loss": 2.0,
    "ppl": None,
    "bpb": 1.0,
    "word_ppl": 3.0,
}


@pytest.mark.parametrize(("key", "value"), ROW_FAULTS.items(), ids=list(ROW_FAULTS))
def test_a_row_that_does_not_follow_from_its_scores_is_refused(run, key, value):
    edit(run, lambda content: content["rows"][1].update({key: value}))
    said = refused(run)
    assert "rope.json: rows[1]" in said or "rope.npz: damaged (nats: float32 (8192,)" in said


def test_rows_are_there_once(run):
    edit(run, lambda content: content["rows"].append(content["rows"][0]))
    assert "rows[2] is the same measurement as rows[0]" in refused(run)


def test_a_file_under_another_label_is_refused(run):
    for suffix in ("json", "npz"):
        (run / f"eval/rope.{suffix}").rename(run / f"eval/alibi.{suffix}")
    assert "alibi.json: label=rope is not the name of the file" in refused(run)


def replaced(old: str, new: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return write


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


NOT_FILES = {"a folder": folder}  # links and pipes: tests/test_hostile.py
DAMAGES = {
    "NaN": replaced('"seed": 1', '"seed": NaN'),
    "-Infinity": replaced('"seed": 1', '"seed": -Infinity'),
    "overflow": replaced('"seed": 1', '"seed": 1e999'),
    "overflow in settings": replaced('"name": "rope"', '"name": 1e999'),
    "huge": replaced('"seed": 1', f'"seed": {"1" * 5000}'),
    "quite huge": replaced('"seed": 1', f'"seed": {2**70}'),
    "twice": replaced('"seed": 1', '"seed": 1, "seed": 2'),
    "deep": replaced('"name": "rope"', '"name": ' + "[" * 10**5),
    "no object": lambda path: path.write_text("[]"),
    "rows no list": lambda path: path.write_text('{"rows": 5}'),
    "row no object": replaced('"rows": [', '"rows": [5,'),
    "not UTF-8": lambda path: path.write_bytes(b'{"label": "\xff"}'),
    "too large": lambda path: path.write_text(path.read_text() + " " * 2**24),
    "empty": lambda path: path.write_text(""),
    **NOT_FILES,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_what_is_no_strict_json_is_refused(run, damage):
    damage(run / "eval/rope.json")
    assert "rope.json" in refused(run)


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as stored:
        return dict(stored)


def changed(**columns: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        old = arrays(path)
        new = {name: change(old[name]) for name, change in columns.items()}
        assert not all(np.array_equal(old[n], new[n]) and old[n].dtype == new[n].dtype for n in new)
        np.savez_compressed(path, **(old | new))

    return write


def with_member(name: str, write: Callable[[typing.IO[bytes]], object]) -> Callable[[Path], object]:
    """The archive with one member written anew."""

    def rewrite(path: Path) -> None:
        with ZipFile(path) as old:
            kept = {n: old.read(n) for n in old.namelist() if n != name}
        with ZipFile(path, "w", ZIP_DEFLATED) as new:
            for other, data in kept.items():
                new.writestr(other, data)
            with new.open(name, "w") as file:
                write(file)

    return rewrite


def at(place: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(column: np.ndarray) -> np.ndarray:
        column = column.copy()
        column[place] = value
        return column

    return change


def lying(shape: str) -> Callable[[typing.IO[bytes]], object]:
    """A .npy whose header promises what does not follow."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return lambda file: file.write(
        b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    )


ARCHIVES = {
    "float64": changed(nats=lambda x: x.astype("f8")),
    "big endian": changed(nats=lambda x: x.astype(">f4")),
    "int64": changed(document=lambda x: x.astype("i8")),
    "unsigned": changed(bytes=lambda x: x.astype("u4")),
    "pickle": changed(nats=lambda x: x.astype(object)),
    "two axes": changed(nats=lambda x: x.reshape(-1, 2)),
    "shorter": changed(index=lambda x: x[:-1]),
    "all shorter": changed(**dict.fromkeys(("nats", "document", "index", "bytes", "row"), lambda x: x[:-1])),
    "other rows": changed(row=at(0, 1)),
    "negative document": changed(document=at(0, -1)),
    "a document's first token": changed(index=at(0, 0)),
    "negative bytes": changed(bytes=at(5, -3)),
    "not sorted": changed(index=lambda x: np.concatenate([x[1::-1], x[2:]])),
    "a token twice": changed(index=lambda x: np.concatenate([x[1:2], x[1:]])),
    "other tokens": changed(index=lambda x: x + 1),
    "NaN": changed(nats=at(3, np.nan)),
    "infinite": changed(nats=at(3, np.inf)),
    "other nats": changed(nats=at(3, 9.0)),
    "one more": with_member("more.npy", lambda file: np.save(file, np.zeros(2))),
    "code": with_member("nats.py", lambda file: file.write(b"import os")),
    "promises": with_member("nats.npy", lying("(1000000000000,)")),
    "promises nothing": with_member("nats.npy", lying("(8192,)")),
    "no header": with_member("nats.npy", lambda file: file.write(b"x" * 300)),
    "torn header": with_member("nats.npy", lying("((((")),
    "a string for a shape": with_member("nats.npy", lying("'\n'''")),
    "no archive": lambda path: path.write_bytes(b"x" * 1000),
    **NOT_FILES,
}  # fmt: skip


@pytest.mark.parametrize("change", ARCHIVES.values(), ids=list(ARCHIVES))
def test_arrays_are_those_that_we_write(run, change):
    change(run / "eval/rope.npz")
    said = refused(run)
    assert "rope.npz" in said or "do not belong together" in said


def test_an_archive_that_unpacks_to_more_is_not_unpacked(run, monkeypatch):
    path = run / "eval/rope.npz"
    with_member("nats.npy", lambda file: file.write(bytes(10**6)))(path)
    monkeypatch.setattr(ZipFile, "open", lambda *_: pytest.fail("it was opened"))
    assert "rope.npz: damaged (more scores than its .json has)" in refused(run)


def test_a_number_of_scores_that_nothing_could_hold_is_refused_first(run, monkeypatch):
    monkeypatch.setattr(ZipFile, "open", lambda *_: pytest.fail("it was opened"))
    edit(run, lambda content: content["rows"][0].update(tokens_scored=2**40))
    assert "tokens_scored: 1,099,511,631,872 in all rows are too many" in refused(run)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_or_flipped_archive_is_named_or_harmless(run, cut):
    path = run / "eval/rope.npz"
    whole = bytearray(path.read_bytes())
    spot = len(whole) * cut // 40
    path.write_bytes(whole[:spot])
    assert "rope.npz: damaged" in refused(run)
    whole[spot] ^= 0xFF
    path.write_bytes(whole)
    try:
        report(run)
    except UserError as error:
        assert "rope." in str(error) and str(error).isprintable()
