"""Own files: read without loss, split by content, and every fault named with its place."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.corpus import SPLITS
from data.files import Files
from data.prepare import prepare_split, prepare_tokenizer
from data.tokenizer import Bytes
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


def spellings(folder: Path) -> list[str]:
    """One file, named in every way that a file system offers."""
    (folder / "docs").mkdir()
    file = folder / "docs/a.txt"
    file.write_text("the text of a document")
    (folder / "soft.txt").symlink_to(file)
    (folder / "chain.txt").symlink_to(folder / "soft.txt")
    os.link(file, folder / "hard.txt")
    (folder / "other").symlink_to(folder / "docs")
    names = ["docs/a.txt", "docs/../docs/a.txt", "soft.txt", "chain.txt", "hard.txt", "other/a.txt"]
    return [str(folder / name) for name in names] + [f"{folder}/./docs//a.txt"]


@pytest.mark.parametrize("n", range(7))
def test_a_file_is_read_once_however_it_is_named(tmp_path: Path, n: int) -> None:
    names = spellings(tmp_path)
    assert texts(build(tmp_path, train=[names[0], names[n]], held_out=1e-9)) == [
        "the text of a document"
    ]
    with pytest.raises(UserError, match=r"data\.test: '.*' is in data\.train too"):
        build(tmp_path, train=[names[0]], test=[names[n]])


def copies(folder: Path, kind: str, text: str) -> tuple[str, str]:
    """A file that holds the text as one of several documents, and that document's name."""
    file = folder / f"copies.{kind}"
    if kind == "jsonl":
        lines(file, {"text": "another"}, {"text": text})
    elif kind == "parquet":
        pq.write_table(pa.table({"text": ["another", text]}), file)
    else:
        file.write_bytes(b"\xef\xbb\xbf" * (kind == "md") + text.encode())
    return str(file), f"{file}:2" if kind in ("jsonl", "parquet") else str(file)


@pytest.mark.parametrize("kind", ["txt", "md", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("one", "two"), [("train", "validation"), ("train", "test"), ("validation", "test")]
)
def test_a_text_in_two_splits_is_refused_with_both_names(
    tmp_path: Path, kind: str, one: str, two: str
) -> None:
    for n in range(3):
        (tmp_path / f"{n}.txt").write_text(f"document {n} ")
    split = {s: [str(tmp_path / f"{n}.txt")] for n, s in enumerate(SPLITS)}
    build(tmp_path, **split).check()
    text = Path(split[one][0]).read_text()
    file, name = copies(tmp_path, kind, text)
    corpus = build(tmp_path, **{**split, two: [*split[two], file]})
    with pytest.raises(UserError) as refused:
        prepare_tokenizer(corpus, Bytes())
    said = str(refused.value)
    assert f"'{split[one][0]}'" in said and f"'{name}'" in said
    assert f"data.{one}" in said and f"data.{two}" in said
    with pytest.raises(UserError):  # and again: nothing of a refused comparison is kept
        prepare_split(corpus, "validation", Bytes().train([]))


def test_texts_that_are_drawn_apart_or_empty_or_twice_in_a_split_are_no_fault(
    tmp_path: Path,
) -> None:
    train = lines(tmp_path / "a.jsonl", *({"text": f"document {n % 50}"} for n in range(100)))
    held = lines(tmp_path / "b.jsonl", {"text": ""}, {"text": "own"}, {"text": "own"})
    (tmp_path / "c.txt").write_text("")
    build(tmp_path, train=[train, str(tmp_path / "c.txt")], validation=[held]).check()
    # what is drawn for the test is in data.train, so it is compared, too
    drawn = texts(build(tmp_path, train=[train], validation=[held]), "test")[0]
    held = lines(tmp_path / "b.jsonl", {"text": drawn})
    with pytest.raises(UserError, match=r"data\.validation: .*b\.jsonl:1.*a\.jsonl"):
        build(tmp_path, train=[train], validation=[held]).check()


def test_texts_are_compared_again_when_a_file_changes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    split = {
        "train": [str(tmp_path / "a.txt")],
        "validation": [str(tmp_path / "b.txt")],
        "test": [],
    }
    build(tmp_path, **split).check()
    (tmp_path / "a.txt").write_text("b")
    with pytest.raises(UserError, match="the same text"):
        build(tmp_path, **split).check()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.symlink_to("gone.txt"), r"b\.txt', a link to 'gone\.txt': No such file"),
        (lambda p: p.symlink_to(p), r"b\.txt', a link to '.*b\.txt': Too many levels"),
        (lambda p: p.symlink_to(p.parent), r"b\.txt' is a folder"),
        (os.mkfifo, r"b\.txt' is no regular file"),
    ],
    ids=["dangling", "loop", "folder", "pipe"],
)
@pytest.mark.parametrize("pattern", ["*.txt", "b.txt", "**/*.txt"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_what_is_no_file_is_named(
    tmp_path: Path, make: Callable[[Path], None], message: str, pattern: str, split: str
) -> None:
    (tmp_path / "a.md").write_text("a")
    make(tmp_path / "b.txt")
    patterns = {"train": [str(tmp_path / "a.md")], split: [str(tmp_path / pattern)]}
    with pytest.raises(UserError, match=rf"data\.{split}: '.*{message}"):
        build(tmp_path, **patterns)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_damage_in_parquet_is_named(tmp_path: Path, place: float, compression: str) -> None:
    """One row group of three is overwritten: the file, and the row group, or the footer."""
    file = tmp_path / "a.parquet"
    table = pa.table({"text": [os.urandom(400).hex() for _ in range(300)]})
    pq.write_table(table, file, row_group_size=100, compression=compression, use_dictionary=False)
    content = bytearray(file.read_bytes())
    a = int(len(content) * place)
    content[a : a + 3000] = b"\xff" * 3000
    file.write_bytes(content)
    group = int(place * 3)
    with pytest.raises(UserError) as refused:
        texts(build(tmp_path, train=[str(file)], held_out=1e-9))
    said = str(refused.value)
    assert str(file) in said and "\n" not in said
    if compression != "none":
        assert f"row group {group} of 3 (counted from 0) is damaged" in said
