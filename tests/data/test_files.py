"""Own files: read without loss, split by content, and every fault named with its place."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.corpus import SPLITS
from data.files import Files
from errors import UserError

HARD = "one\r\ntwo\rthree\0\u2029four\u2028 <|endoftext|> \ufeff🐕"


def build(tmp_path: Path, **changes) -> Files:
    settings = {
        "train": [str(tmp_path / "*.*")],
        "validation": None,
        "test": None,
        "text_field": "text",
        "held_out": 0.2,
        "split_seed": 0,
        "document_mask": False,
        "cache_dir": str(tmp_path / "cache"),
    }
    return Files(**{**settings, **changes})


def texts(corpus: Files, split: str = "train") -> list[str]:
    return [document["text"] for document in corpus.documents(split)]


def lines(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("suffix", [".txt", ".md", ".jsonl", ".parquet"])
def test_text_is_kept_as_it_is(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        row = json.dumps({"text": HARD}, ensure_ascii=False)
        file.write_bytes(f"{row}\r\n\n{row}".encode())
    elif suffix == ".parquet":
        pq.write_table(pa.table({"other": [1, 2], "text": [HARD, HARD]}), file)
    else:
        file.write_bytes(HARD.encode())
    loaded = build(tmp_path, held_out=1e-9).load("train")
    assert set(loaded["text"]) == {HARD}
    places = [":1", ":3"] if suffix == ".jsonl" else [":1", ":2"]
    names = (
        [f"{file}{place}" for place in places] if suffix in (".jsonl", ".parquet") else [str(file)]
    )
    assert loaded["name"][:] == names


def test_globs_and_repeats_name_a_file_once(tmp_path: Path) -> None:
    for name in ("b", "a", "[c]"):
        (tmp_path / f"{name}.txt").write_text(name)
    patterns = [str(tmp_path / "**/*.txt"), str(tmp_path / "a.txt"), str(tmp_path / "[c].txt")]
    corpus = build(tmp_path, train=patterns, held_out=1e-9)
    assert texts(corpus) == ["[c]", "a", "b"]


def test_drawn_splits_are_disjoint_and_stay_when_text_is_added(tmp_path: Path) -> None:
    first = lines(tmp_path / "a.jsonl", *({"text": f"document {n}"} for n in range(500)))
    before = {split: texts(build(tmp_path, train=[first]), split) for split in SPLITS}
    assert sorted(text for split in SPLITS for text in before[split]) == sorted(
        f"document {n}" for n in range(500)
    )
    assert 60 < len(before["test"]) < 140 and 60 < len(before["validation"]) < 140
    second = lines(tmp_path / "0.jsonl", *({"text": f"document {n}"} for n in range(400, 900)))
    both = build(tmp_path, train=[second, first])
    for split in SPLITS:
        assert set(before[split]) <= set(texts(both, split))
    assert not set(texts(both, "train")) & {*texts(both, "test"), *texts(both, "validation")}
    assert texts(build(tmp_path, train=[first], split_seed=1), "test") != before["test"]


def test_a_given_split_is_taken_whole_and_the_other_drawn_as_before(tmp_path: Path) -> None:
    train = lines(tmp_path / "a.jsonl", *({"text": f"document {n}"} for n in range(100)))
    own = lines(tmp_path / "b.jsonl", *({"text": f"own {n}"} for n in range(20)))
    drawn = build(tmp_path, train=[train])
    given = build(tmp_path, train=[train], validation=[own])
    assert texts(given, "validation") == [f"own {n}" for n in range(20)]
    assert texts(given, "test") == texts(drawn, "test")
    assert set(texts(given)) == {*texts(drawn), *texts(drawn, "validation")}


def test_fingerprint_sees_content_and_not_times(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("abc")
    corpus = build(tmp_path, held_out=1e-9)
    before, old = corpus.fingerprint("train"), file.stat()
    os.utime(file, ns=(0, 0))
    assert corpus.fingerprint("train") == before
    file.write_text("abd")
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert corpus.fingerprint("train") != before
    assert corpus.load("train")["text"][:] == ["abd"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"abc\xffdef", r"a\.txt: not UTF-8 at byte 3"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r"a\.jsonl: not UTF-8 at byte 24"),
        ("a.jsonl", b'{"text": "a"}\n{"text": }\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b'{"text": "a"}\n["text"]\n', r"a\.jsonl:2: a row must be an object"),
        ("a.jsonl", b'{"body": "a", "id": 1}\n', r"a\.jsonl:1: .*text_field=text; .* body, id"),
        ("a.jsonl", b'{"text": null}\n', r"a\.jsonl:1: field 'text' is not a text: null"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl:1: field 'text' has \\ud800"),
        ("a.jsonl", b"\n", r"data\.train: there is no document"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a parquet file"),
    ],
)
def test_faults_in_a_file_are_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        build(tmp_path).load("train")


def test_faults_in_parquet_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"], "id": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: no field .*text_field=text; .* body, id"):
        texts(build(tmp_path))
    pq.write_table(pa.table({"text": ["a", None]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet:2: field 'text' is not a text"):
        texts(build(tmp_path))
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    pq.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet:1: not UTF-8 at byte 1"):
        texts(build(tmp_path))


def test_faults_in_the_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "a.csv").write_text("a")
    file = str(tmp_path / "a.txt")
    for changes, message in (
        ({"train": []}, r"data\.train names no file"),
        ({"train": [str(tmp_path / "*.html")]}, r"data\.train: there is no file '.*\*\.html'"),
        ({"train": [str(tmp_path)]}, r"data\.train: '.*' is a folder"),
        ({"train": [str(tmp_path / "a.csv")]}, r"data\.train: '.*a\.csv' is none of \.txt"),
        ({"train": [file], "test": [file]}, r"data\.test: '.*a\.txt' is in data\.train too"),
        ({"held_out": 0.5}, r"data\.held_out=0\.5"),
    ):
        with pytest.raises(UserError, match=message):
            build(tmp_path, **{"train": [file], **changes})
    with pytest.raises(UserError, match=r"data\.test: none of the 1 documents .* drawn"):
        build(tmp_path, train=[file], held_out=1e-9).load("test")
