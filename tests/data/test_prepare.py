"""Preparing: what is cached is whole, current and the same whoever made it, however often it was killed."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from data import cache
from data.corpora import CORPORA
from data.files import Files
from data.prepare import TokenSplit, prepare_split, prepare_tokenizer
from data.tokenizer import BPE, EOS, TOKENIZERS, Bytes, Tokenizer
from errors import UserError

ROOT = Path(__file__).parents[2]
TEXTS = [f"Document {n} says {EOS} {'and more ' * (n % 7)}\r\n" for n in range(200)] + ["", "ï\0"]


def build(folder: Path, cache: str = "cache", **changes) -> Files:
    train, test = folder / "train.jsonl", folder / "test.txt"
    if not train.exists():
        train.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        test.write_text("held out")
    settings = yaml.safe_load((ROOT / "configs/data/files.yaml").read_text())
    del settings["name"]
    given = {"train": [str(train)], "validation": [str(test)], "test": []}
    return Files(**{**settings, **given, "cache_dir": str(folder / cache), **changes})


def same(a: TokenSplit, b: TokenSplit) -> bool:
    equal = np.array_equal(a.tokens, b.tokens) and np.array_equal(a.offsets, b.offsets)
    return equal and a.names == b.names and (a.hash, a.empty) == (b.hash, b.empty)


def tokens_file(folder: Path, cache: str = "cache") -> Path:
    (file,) = (folder / cache).glob("train-*/tokens.bin")
    return file


@pytest.mark.parametrize("spec", [Bytes(), BPE(vocab_size=300, sample_bytes=None)])
def test_documents_come_back_one_eos_after_each(tmp_path: Path, spec: BPE | Bytes) -> None:
    corpus = build(tmp_path)
    tokenizer = prepare_tokenizer(corpus, spec)
    split = prepare_split(corpus, "train", tokenizer)
    texts = [text for text in TEXTS if text]
    assert [tokenizer.decode(split.document(d).tolist()) for d in range(len(split))] == texts
    assert len(split.tokens) == sum(len(tokenizer.encode(text)) for text in texts) + len(texts)
    assert (split.tokens == tokenizer.eos).sum() == len(texts)
    assert (split.tokens[split.offsets[1:] - 1] == tokenizer.eos).all()
    assert split.token_bytes[split.tokens].sum() == sum(len(text.encode()) for text in texts)
    assert split.names == [f"{tmp_path}/train.jsonl:{n}" for n, t in enumerate(TEXTS, 1) if t]
    assert split.empty == 1
    content = split.tokens.tobytes() + split.offsets.tobytes()
    assert split.hash == hashlib.sha256(content).hexdigest()


def test_each_tokenizer_of_a_text_is_kept_under_a_name_of_its_own(tmp_path: Path) -> None:
    specs = [
        Bytes(),
        BPE(vocab_size=260, sample_bytes=None),
        BPE(vocab_size=270, sample_bytes=None),
        BPE(vocab_size=270, sample_bytes=300),
    ]
    corpus = build(tmp_path)
    fresh = [spec.train(corpus.load("train")).hash for spec in specs]
    assert len(set(fresh)) == len(specs)
    for _ in range(2):  # made, then found
        assert [prepare_tokenizer(corpus, spec).hash for spec in specs] == fresh


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    corpus = build(tmp_path)
    state = json.loads(Bytes().train([])._text)
    for n in range(70_000):
        state["model"]["vocab"][f"unreachable {n}"] = len(state["model"]["vocab"])
    large = Tokenizer(json.dumps(state))
    split = prepare_split(corpus, "train", large)
    assert split.tokens.dtype == np.uint32
    assert np.array_equal(split.tokens, prepare_split(corpus, "train", Bytes().train([])).tokens)


def test_second_time_reads_nothing_but_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    corpus = build(tmp_path)
    spec = BPE(vocab_size=280, sample_bytes=1000)
    tokenizer = prepare_tokenizer(corpus, spec)
    first = prepare_split(corpus, "train", tokenizer)
    monkeypatch.setattr(Files, "load", lambda self, split: pytest.fail("loaded again"))
    assert prepare_tokenizer(corpus, spec).hash == tokenizer.hash
    assert same(prepare_split(corpus, "train", tokenizer), first)
    assert capfd.readouterr() == ("", "")


def test_options_that_change_no_token_share_the_cache(tmp_path: Path) -> None:
    tokenizer = prepare_tokenizer(build(tmp_path), Bytes())
    prepare_split(build(tmp_path), "train", tokenizer)
    prepare_split(build(tmp_path, document_mask=True), "train", tokenizer)
    tokens_file(tmp_path)
    prepare_split(build(tmp_path, split_seed=1), "train", tokenizer)
    assert len(list((tmp_path / "cache").glob("train-*/tokens.bin"))) == 2


def test_tokenizer_is_trained_on_the_training_split_alone(tmp_path: Path) -> None:
    spec = BPE(vocab_size=300, sample_bytes=None)
    first = prepare_tokenizer(build(tmp_path), spec)
    (tmp_path / "test.txt").write_text("zyx " * 1000)
    assert prepare_tokenizer(build(tmp_path, cache="other"), spec).hash == first.hash
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "zyx wvu tsr " * 9}) + "\n")
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size=300"):
        prepare_tokenizer(build(tmp_path), spec)


def damaged(file: Path, damage: str) -> None:
    content = file.read_bytes()
    middle = len(content) // 2
    bit = bytes([content[middle] ^ 1])
    cut = content[:middle]
    new = {
        "cut": cut,
        "bit": cut + bit + content[middle + 1 :],
        "zeros": cut + bytes(len(content) - middle),
        "more": content + content[:1],
        "empty": b"",
    }
    if damage == "gone":
        file.unlink()
    else:
        times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
        file.write_bytes(new[damage])
        os.utime(file, ns=times)
        assert file.read_bytes() != content


@pytest.mark.parametrize("damage", ["cut", "bit", "zeros", "more", "empty", "gone"])
def test_damaged_files_are_made_again(tmp_path: Path, damage: str) -> None:
    """Every file of the cache, also where only one bit changed and neither size nor time."""
    corpus, spec = build(tmp_path), BPE(vocab_size=300, sample_bytes=None)
    tokenizer = prepare_tokenizer(corpus, spec)
    split = prepare_split(corpus, "train", tokenizer)
    expected = dataclasses.replace(split, tokens=np.array(split.tokens))
    folders = ("text-*", "tokenizer-*", "train-*")
    files = [f for name in folders for f in (tmp_path / "cache").glob(f"{name}/**/*")]
    kinds = {f.name if f.suffix != ".arrow" else ".arrow" for f in files if f.is_file()}
    assert kinds >= {"tokens.bin", "offsets.npy", "names.json", "meta.json", "tokenizer.json",
                     "manifest.json", ".arrow"}  # fmt: skip
    for file in files:
        if file.is_file() and file.stat().st_size:
            damaged(file, damage)
            if "text-" in str(file):  # read only where the tokens have to be made again
                tokens_file(tmp_path).unlink()
            assert prepare_tokenizer(corpus, spec).hash == tokenizer.hash, file
            assert same(prepare_split(corpus, "train", tokenizer), expected), file


def test_a_cache_that_can_only_be_read_is_read(tmp_path: Path, monkeypatch) -> None:
    corpus, tokenizer = build(tmp_path), Bytes().train([])
    expected = prepare_split(corpus, "train", tokenizer)

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache.filelock.FileLock, "acquire", refuse)
    assert same(prepare_split(corpus, "train", tokenizer), expected)
    with pytest.raises(UserError, match=r"data\.cache_dir=.*can't write there: .*denied"):
        prepare_split(corpus, "validation", tokenizer)


KILLED = """
import os, signal, sys
sys.path[:0] = ["tests/data"]
from pathlib import Path
import test_prepare as t
from data import cache
from data.tokenizer import Tokenizer

how, encode_batch, calls = sys.argv[2], Tokenizer.encode_batch, []

def kill(*args):
    os.kill(os.getpid(), signal.SIGKILL)

def kill_in(folder, path):
    if f"/{folder}-" in str(path):
        kill()

def some_then_kill(self, texts):
    calls.append(len(texts))
    if sum(calls) > 100:
        kill()
    return encode_batch(self, texts)

if how == "encoding":
    Tokenizer.encode_batch = some_then_kill
elif how in ("text", "train"):  # all is written, not yet under its name
    cache.flush = lambda path: kill_in(how, path)
t.prepare_split(t.build(Path(sys.argv[1]), "killed"), "train", t.Bytes().train([]))
"""


@pytest.mark.parametrize("how", ["text", "encoding", "train"])
def test_killed_then_run_again_equals_an_undisturbed_run(tmp_path: Path, how: str) -> None:
    tokenizer = Bytes().train([])
    expected = prepare_split(build(tmp_path), "train", tokenizer)
    arguments = [sys.executable, "-c", KILLED, str(tmp_path), how]
    assert subprocess.run(arguments, cwd=ROOT).returncode == -signal.SIGKILL
    begun = "text" if how == "text" else "train"
    assert list((tmp_path / "killed").glob(f"{begun}-*.partial/*"))
    assert same(prepare_split(build(tmp_path, "killed"), "train", tokenizer), expected)
    assert tokens_file(tmp_path, "killed").read_bytes() == tokens_file(tmp_path).read_bytes()
    assert not list((tmp_path / "killed").glob("*.partial"))


def test_two_processes_at_once_and_nothing_written_elsewhere(tmp_path: Path) -> None:
    build(tmp_path)
    home = tmp_path / "home"
    env = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "HF_HOME": str(home)}
    arguments = [sys.executable, "-c", KILLED, str(tmp_path), "not"]
    both = [subprocess.Popen(arguments, cwd=ROOT, env=env) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    tokenizer = Bytes().train([])
    expected = prepare_split(build(tmp_path), "train", tokenizer)
    assert same(prepare_split(build(tmp_path, "killed"), "train", tokenizer), expected)
    assert not [path for path in home.rglob("*") if path.is_file()]
    files = {path.name for path in tokens_file(tmp_path, "killed").parent.iterdir()}
    assert files == {"tokens.bin", "offsets.npy", "names.json", "meta.json", "manifest.json"}


def test_changed_file_of_the_same_name_size_and_time_is_noticed(tmp_path: Path) -> None:
    corpus, tokenizer = build(tmp_path), Bytes().train([])
    before = np.array(prepare_split(corpus, "train", tokenizer).tokens)
    file = tmp_path / "train.jsonl"
    old = file.stat()
    file.write_text(file.read_text().replace("Document 7 ", "Document 8 "))
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns))
    assert file.stat().st_size == old.st_size
    after = prepare_split(corpus, "train", tokenizer).tokens
    assert len(after) == len(before) and (after != before).sum() == 1


def test_errors_are_named(tmp_path: Path) -> None:
    corpus, tokenizer = build(tmp_path), Bytes().train([])
    with pytest.raises(UserError, match="split=dev"):
        prepare_split(corpus, "dev", tokenizer)
    (tmp_path / "test.txt").write_text("")
    with pytest.raises(UserError, match=r"data\.validation: all of its 1 documents are empty"):
        prepare_split(corpus, "validation", tokenizer)
    (tmp_path / "blocked").write_text("")
    with pytest.raises(UserError, match=r"data\.cache_dir=.*blocked"):
        prepare_split(build(tmp_path, "blocked"), "train", tokenizer)


@pytest.mark.parametrize(
    "option", sorted((ROOT / "configs/data").glob("*.yaml")), ids=lambda p: p.stem
)
def test_data_options_build_from_exactly_their_keys(option: Path, tmp_path: Path) -> None:
    keys = yaml.safe_load(option.read_text())
    assert next(iter(keys)) == "name" and keys["name"] == option.stem
    corpus = CORPORA[keys.pop("name")]
    if "train" in keys and not keys["train"]:
        (tmp_path / "a.txt").write_text("a")
        keys["train"] = [str(tmp_path / "a.txt")]
    corpus(**keys)
    for key in keys:
        with pytest.raises(TypeError):
            corpus(**{name: value for name, value in keys.items() if name != key})


@pytest.mark.parametrize(
    "option", sorted((ROOT / "configs/tokenizer").glob("*.yaml")), ids=lambda p: p.stem
)
def test_tokenizer_options_build_from_exactly_their_keys(option: Path) -> None:
    keys = yaml.safe_load(option.read_text())
    assert next(iter(keys)) == "name" and keys["name"] == option.stem
    spec = TOKENIZERS[keys.pop("name")]
    spec(**keys)
    for key in keys:
        with pytest.raises(TypeError):
            spec(**{name: value for name, value in keys.items() if name != key})
