"""Bad text through the command that people type: it trains on exactly that text, or stops with one line and no run.

What each reader and the cache do with such text is in test_files.py and test_prepare.py.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import command

from configs.check import build
from data.corpora import CORPORA
from data.prepare import prepare_split
from data.tokenizer import EOS, Tokenizer
from runs.config import load_config

WORDS = "to be or not to be that is the question " * 9
BASE = [
    "experiment=smoke",
    "tracker=none",
    "train.steps=1",
    "train.eval_tokens=32",
    "tokenizer=bytes",
]
FILES = ["data=files", "data.validation=[held.txt]", "data.test=[]", "data.cache_dir=cache"]


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("held.txt").write_text("held out " + WORDS)


def train(*overrides: str) -> int:
    return command("train", *BASE, *FILES, "hydra.run.dir=run", *overrides)


def rows(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


GOOD = {
    "an empty document": ("a.jsonl", rows(WORDS, "", WORDS), [WORDS, WORDS]),
    "documents shorter than the context": ("a.jsonl", rows(*["be"] * 40), ["be"] * 40),
    "a document of one byte": ("a.jsonl", rows("x", WORDS), ["x", WORDS]),
    "NUL bytes": ("a.txt", b"\0" + WORDS.encode() + b"\0\0", ["\0" + WORDS + "\0\0"]),
    "the end-of-text token in words": ("a.txt", (EOS + WORDS + EOS).encode(), [EOS + WORDS + EOS]),
    "line ends of every kind": (
        "a.jsonl",
        rows(f"a\r\nb\u2029c\u2028d\x85e\x0bf\x1cg\r{WORDS}").replace(b"\n", b"\r\n"),
        [f"a\r\nb\u2029c\u2028d\x85e\x0bf\x1cg\r{WORDS}"],
    ),
    "a pair of surrogates that is a character": (
        "a.jsonl",
        b'{"text": "\\ud83d\\udc15' + WORDS.encode() + b'"}\n',
        ["🐕" + WORDS],
    ),
    "a byte order mark": ("a.md", ("\ufeff" + WORDS).encode(), [WORDS]),
    "a byte order mark and one more": (
        "a.txt",
        f"\ufeff\ufeff{WORDS}".encode(),
        ["\ufeff" + WORDS],
    ),
    "a byte order mark before rows": ("a.jsonl", b"\xef\xbb\xbf" + rows(WORDS), [WORDS]),
    "a byte order mark on a line of its own": (
        "a.jsonl",
        b"\xef\xbb\xbf\r\n" + rows(WORDS),
        [WORDS],
    ),
    "a text smaller than a batch": ("a.txt", WORDS[:64].encode(), [WORDS[:64]]),
}


@pytest.mark.parametrize(("name", "content", "texts"), GOOD.values(), ids=GOOD)
def test_trains_on_exactly_that_text(name, content, texts, capfd):
    Path(name).write_bytes(content)
    code = train(f"data.train=[{name}]", "data.document_mask=true")
    assert code == 0, capfd.readouterr().err
    config = load_config(Path("run"))
    tokenizer = Tokenizer.load("run/tokenizer.json")
    split = prepare_split(build("data", CORPORA, config.data), "train", tokenizer)
    assert [tokenizer.decode(split.document(d).tolist()) for d in range(len(split))] == texts
    assert (np.array(split.tokens) == tokenizer.eos).sum() == len(texts)


BAD = {
    "half a pair of surrogates": ("a.jsonl", b'{"text": "\\ud800 x"}\n', r"a.jsonl:1: field 'text' has \ud800"),
    "half a pair, as bytes": ("a.txt", b"ab\xed\xa0\x80", "a.txt: not UTF-8 at byte 2"),
    "no UTF-8 after a byte order mark": ("a.jsonl", b"\xef\xbb\xbf\xff", "a.jsonl: not UTF-8 at byte 3"),
    "the held-out text": ("a.jsonl", rows("held out " + WORDS), "'held.txt' and 'a.jsonl:1' of data.train"),
    "no UTF-8": ("a.txt", b"abc\xff", "a.txt: not UTF-8 at byte 3"),
    "UTF-16": ("a.txt", WORDS.encode("utf-16"), "a.txt: not UTF-8 at byte 0"),
    "a missing field": ("a.jsonl", b'{"body": "x"}\n', "no field data.text_field=text; there are body"),
    "a row cut short": ("a.jsonl", rows(WORDS)[:-9], "a.jsonl:1: not JSON"),
    "an empty file": ("a.txt", b"", "data.train: all of its 1 documents are empty"),
    "a file without rows": ("a.jsonl", b"\n\n", "data.train: there is no document in its files"),
    "less text than a context": ("a.txt", b"to be", "context_length=32 needs 33 tokens and the text has 6"),
    "a parquet file cut short": ("a.parquet", b"PAR1\0\0", "a.parquet: not a parquet file"),
    "text under a name for tables": ("a.parquet", WORDS.encode(), "a.parquet: not a parquet file"),
    "a deep row": ("a.jsonl", b"[" * 100_000 + b"\n", "a.jsonl:1: not JSON"),
    "a huge number": ("a.jsonl", b'{"text": ' + b"1" * 5000 + b"}\n", "a.jsonl:1: "),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_stops_with_one_line_and_no_run(name, content, message, capfd):
    Path(name).write_bytes(content)
    assert train(f"data.train=[{name}]") == 1
    refused(message, capfd)


def refused(message: str, capfd) -> None:
    said = capfd.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and message in said, said
    assert not Path("run").exists() and not Path("outputs").exists()
    assert not list(Path().glob("**/*.partial"))


def test_a_hub_out_of_reach_is_one_line(monkeypatch, capfd):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "hub")
    arguments = [*BASE, "data=wikitext103", "data.cache_dir=cache", "hydra.run.dir=run"]
    assert command("train", *arguments) == 1
    refused("data=wikitext103: the Hugging Face hub can't be reached", capfd)


@pytest.mark.parametrize("place", ["held.txt", "held.txt/under", "/proc/nowhere", "/dev/null"])
def test_a_cache_where_nothing_can_be_written_is_one_line(place, capfd):
    Path("a.txt").write_text(WORDS)
    assert train("data.train=[a.txt]", f"data.cache_dir={place}") == 1
    refused(f"data.cache_dir={place}: can't write there", capfd)


def test_a_full_disk_is_one_line(monkeypatch, capfd):
    Path("a.txt").write_text(WORDS)

    def full(self: Tokenizer, path: str | Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Tokenizer, "save", full)
    assert train("data.train=[a.txt]") == 1
    refused("No space left on device", capfd)


def validation_losses(folder: str) -> list[float]:
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["val/loss"] for line in lines]


def test_damage_while_no_command_runs_changes_no_number(capfd):
    """One bit of the tokens: the same training as before, bit for bit."""
    Path("a.txt").write_text(WORDS)
    assert train("data.train=[a.txt]") == 0
    losses = validation_losses("run")
    for pattern in ("train-*/tokens.bin", "validation-*/tokens.bin"):
        for n, file in enumerate(Path("cache").glob(pattern)):
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
            name = f"again-{file.parent.name[:5]}-{n}"
            assert train("data.train=[a.txt]", f"hydra.run.dir={name}") == 0
            assert validation_losses(name) == losses
