"""Tokenizers: nothing of a text is lost, nothing in a text can end a document, training is the same
everywhere."""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from data import tokenizer as module
from data.tokenizer import BPE, EOS, Bytes, Tokenizer, pieces, sample
from errors import UserError

ROOT = Path(__file__).parents[2]
ENGLISH = [
    {"text": f"It's the {n}th time, isn't it?\n\n    The cat sat on the mat.   \n" * 3}
    for n in range(50)
]
BPES = {size: BPE(vocab_size=size, sample_bytes=None).train(ENGLISH) for size in (257, 300)}
ALL = {"bytes": Bytes().train(ENGLISH), **BPES}
HARD = [
    "",
    "x != y , ok ?",
    "  two",
    "\r\n\tend  ",
    "Unï",
    "🐕",
    "a\u2029b\u2028c\x85d",
    "a\0b",
    EOS,
    f"{EOS} {EOS}<|endoftext",
    "\ufeffBOM",
    "e\u0301 is not \u00e9",
    "ﬁ ½ Å",
]


@pytest.mark.parametrize("tokenizer", ALL.values(), ids=map(str, ALL))
@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back(tokenizer: Tokenizer, text: str) -> None:
    check(tokenizer, text)


@pytest.mark.parametrize("tokenizer", ALL.values(), ids=map(str, ALL))
@given(text=st.text())
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    check(tokenizer, text)


def check(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos not in ids
    assert tokenizer.token_bytes[ids].sum() == len(text.encode())


def test_byte_ids_are_bytes() -> None:
    assert ALL["bytes"].encode("Aï\n") == list("Aï\n".encode())
    assert (ALL["bytes"].vocab_size, ALL["bytes"].eos) == (257, 256)


def test_every_token_stands_for_its_bytes() -> None:
    tokenizer = BPES[300]
    ids = [i for i in range(tokenizer.vocab_size) if i != tokenizer.eos]
    assert min(tokenizer.token_bytes[ids]) == 1
    assert tokenizer.token_bytes[tokenizer.eos] == 0
    ascii_only = [i for i in ids if len(text := tokenizer.decode([i])) and text.isascii()]
    assert len(ascii_only) > 128
    assert all(len(tokenizer.decode([i])) == tokenizer.token_bytes[i] for i in ascii_only)


def test_eos_stays_out_of_reach_of_a_text_full_of_it() -> None:
    tokenizer = BPE(vocab_size=268, sample_bytes=None).train([{"text": (EOS + " ") * 500}])
    assert tokenizer.vocab_size == 268
    check(tokenizer, f"a{EOS}{EOS}")


words = st.lists(
    st.sampled_from(["a", "'s", " ", "  ", "\n", "\u2029", "\x1c", "ï", "7", "?!", " b"])
)


@given(parts=words, size=st.integers(1, 5))
def test_pieces_are_encoded_as_the_whole(parts: list[str], size: int) -> None:
    text, whole = "".join(parts), module.PIECE
    for tokenizer in ALL.values():
        expected = tokenizer.encode(text)
        try:
            module.PIECE = size
            assert "".join(pieces(text)) == text
            assert tokenizer.encode(text) == expected
        finally:
            module.PIECE = whole


def test_long_texts_are_cut() -> None:
    assert len(list(pieces("some words " * 20_000))) > 2


def test_file_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    BPES[300].save(path)
    loaded = Tokenizer.load(path)
    assert loaded.hash == BPES[300].hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.encode("The cat") == BPES[300].encode("The cat")
    assert np.array_equal(loaded.token_bytes, BPES[300].token_bytes)
    plain = tokenizers.Tokenizer.from_file(str(path))
    assert plain.encode("The cat").ids == loaded.encode("The cat")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="no such tokenizer"):
        Tokenizer.load(path)
    BPES[300].save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Tokenizer.load(path)
    special = tokenizers.Tokenizer.from_str(BPES[300]._text)
    special.add_special_tokens([EOS])  # now a text that spells it would end a document
    special.save(str(path))
    with pytest.raises(UserError, match="added tokens"):
        Tokenizer.load(path)


FORM = {
    "a normalizer": {"normalizer": {"type": "Lowercase"}},
    "letters mapped to one": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": "[a-y]"}, "content": "z"}
    },
    "a prefix space": {"pre_tokenizer": {"add_prefix_space": True}},
    "words without blanks": {
        "pre_tokenizer": {"type": "Whitespace", "add_prefix_space": False},
    },
    "a letter dropped": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": "犬"},
                    "behavior": "Removed",
                    "invert": False,
                },
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": True,
                },
            ],
        }
    },
    "no pre-tokenizer": {"pre_tokenizer": None},
    "no decoder": {"decoder": None},
    "another decoder": {"decoder": {"type": "Fuse"}},
    "texts cut short": {
        "truncation": {
            "direction": "Right",
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    },
    "a template": {
        "post_processor": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        }
    },
    "dropout": {"model": {"dropout": 0.5}},
    "a suffix": {"model": {"end_of_word_suffix": "</w>"}},
    "a prefix": {"model": {"continuing_subword_prefix": "##"}},
    "another model": {"model": {"type": "WordLevel", "unk_token": "a"}},
    "a gap in the numbers": {"model": {"vocab": {EOS: 400}}},
    "a number twice": {"model": {"vocab": {EOS: 0}}},
    "a token of no bytes": {"model": {"vocab": {"犬": 300}}},
    "a missing byte": {"model": {"vocab": {"a": None}}},
    "a text that ends a document": {
        "pre_tokenizer": {"use_regex": False},
        "model": {"ignore_merges": True},
    },
}


def changed(state: Any, by: Any) -> Any:
    if not isinstance(state, dict) or not isinstance(by, dict):
        return by
    merged = {key: changed(state.get(key), value) for key, value in by.items()}
    return {
        key: value
        for key, value in {**state, **merged}.items()
        if key not in by or value is not None or key in OPTIONAL
    }


OPTIONAL = ("pre_tokenizer", "decoder")  # null says something there


@pytest.mark.parametrize("change", FORM.values(), ids=FORM)
def test_a_tokenizer_that_may_lose_text_is_refused(tmp_path: Path, change: dict) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(changed(json.loads(BPES[300]._text), change)))
    with pytest.raises(UserError) as refused:
        Tokenizer.load(path)
    said = str(refused.value)
    assert said.startswith(f"{path}: not a tokenizer of this program: ") and "\n" not in said


def test_two_tokens_with_one_number_are_refused(tmp_path: Path) -> None:
    rare = BPE(vocab_size=260, sample_bytes=None).train([{"text": "qzqzjqzj " * 50}])
    state = json.loads(rare._text)
    merged = [token for token in state["model"]["vocab"] if len(token) > 1 and token != EOS]
    state["model"]["vocab"][merged[0]] = state["model"]["vocab"][merged[1]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="numbered 0, 1, 2"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_what_gives_no_text_back_is_refused_whatever_its_form(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "tokenizer.json"
    BPES[300].save(path)
    decode = Tokenizer.decode
    for letter in "é\u2028\0 ":
        monkeypatch.setattr(
            Tokenizer, "decode", lambda t, ids, x=letter: decode(t, ids).replace(x, "")
        )
        with pytest.raises(UserError, match="does not give back"):
            Tokenizer.load(path)


ORDINARY = ["words", "lines", "Chinese with commas", "blanks"]


def text(kind: str, n: int) -> str:
    """About n characters."""
    rng = random.Random(n)
    word = lambda k: "".join(rng.choices("etaoinshrdlu", k=k))  # noqa: E731
    match kind:
        case "words":
            return " ".join(word(6) for _ in range(n // 7))
        case "lines":
            return "\n".join(word(6) for _ in range(n // 7))
        case "letters":
            return "".join(rng.choices("acgt", k=n))
        case "Chinese":
            return "".join(chr(rng.randint(0x4E00, 0x9000)) for _ in range(n))
        case "Chinese with commas":
            return "\uff0c".join(
                "".join(chr(rng.randint(0x4E00, 0x4F00)) for _ in range(9)) for _ in range(n // 10)
            )
        case "one letter":
            return "a" * n
        case "blanks":
            return "".join(
                word(3) + "\n" * rng.randint(0, 3) + " " * rng.randint(1, 9) for _ in range(n // 10)
            )
    raise ValueError(kind)


def in_process(texts: Iterable[str | None], vocab_size: int) -> tokenizers.models.Model:
    """As `learned`, without any bound on words."""
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=module.byte_characters(), show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    return learner.model


@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_text_gives_the_tokens_that_it_always_gave(kind: str, monkeypatch) -> None:
    """Neither where a text is cut nor the bound on words changes them."""
    rows = [{"text": text(kind, 3000)}]
    mine = BPE(vocab_size=500, sample_bytes=None).train(rows)
    monkeypatch.setattr(module, "learned", in_process)
    assert BPE(vocab_size=500, sample_bytes=None).train(rows).hash == mine.hash
    long = text(kind, 30_000)
    whole = mine._tokenizer.encode(long).ids
    monkeypatch.setattr(module, "PIECE", 1000)
    assert mine.encode(long) == whole


@pytest.mark.parametrize("kind", ["lines", "letters", "Chinese", "one letter"])
def test_text_without_blanks_takes_time_in_proportion(kind: str) -> None:
    """In pieces of bounded length, and none of the words learned from is long: not the square of it."""
    for size in (1, 300_000, 1_000_000):
        parts = list(pieces(whole := text(kind, size)))
        assert "".join(parts) == whole and max(map(len, parts)) <= module.MOST
    began = time.monotonic()
    tokenizer = BPE(vocab_size=268, sample_bytes=None).train([{"text": text(kind, 300_000)}])
    assert time.monotonic() - began < 20  # unbounded: minutes
    check(tokenizer, text(kind, 300_000))


def test_learning_that_goes_wrong_is_one_line(monkeypatch, capfd) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        UserError, match=r"learning the tokenizer ended with 1.*tokenizer\.sample_bytes"
    ):
        BPE(vocab_size=300, sample_bytes=None).train(ENGLISH)


def test_who_learns_ends_with_who_asked(tmp_path: Path) -> None:
    """Killed without a chance to say so, while texts are read and while merges are made."""
    code = (
        "import random, sys, time\n"
        "from data.tokenizer import BPE\n"
        "words = (''.join(random.choices('abcdefghijklmnopqrstuvwxyz', k=8)) for _ in range(1_000_000))\n"
        "def rows():\n"
        "    yield {'text': ' '.join(words)}\n"
        "    print('read', flush=True)\n"
        "    time.sleep(60 * (sys.argv[1] == 'reading'))\n"
        "BPE(vocab_size=30_000, sample_bytes=None).train(rows())"
    )
    for phase in ("reading", "merging"):
        asked = subprocess.Popen(
            [sys.executable, "-c", code, phase], cwd=ROOT, stdout=subprocess.PIPE
        )
        assert asked.stdout and asked.stdout.readline() == b"read\n"
        time.sleep(0.5)
        (child,) = Path(f"/proc/{asked.pid}/task/{asked.pid}/children").read_text().split()
        asked.kill()
        asked.wait()
        end = time.monotonic() + 2
        while running(child) and time.monotonic() < end:
            time.sleep(0.05)
        assert not running(child), phase


def running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_sizes_out_of_reach() -> None:
    with pytest.raises(UserError, match=r"tokenizer\.vocab_size=256"):
        BPE(vocab_size=256, sample_bytes=None)
    with pytest.raises(UserError, match=r"tokenizer\.sample_bytes"):
        BPE(vocab_size=300, sample_bytes=0)
    with pytest.raises(UserError, match=r"use tokenizer\.vocab_size=(\d+)") as error:
        BPE(vocab_size=5000, sample_bytes=None).train(ENGLISH)
    most = int(str(error.value).split("tokenizer.vocab_size=")[2].split()[0])
    assert BPE(vocab_size=most, sample_bytes=None).train(ENGLISH).vocab_size == most


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=50), share=st.floats(0.01, 1.5))
def test_sample_is_about_as_large_as_asked(sizes: list[int], share: float) -> None:
    wanted = max(1, int(sum(sizes) * share))
    texts = list(sample([{"text": "x" * size} for size in sizes], wanted))
    taken = sum(map(len, texts))
    assert abs(taken - min(wanted, sum(sizes))) <= max(sizes)
    assert share < 1 or len(texts) == len(sizes)


def test_sample_is_spread_evenly() -> None:
    rows = [{"text": f"{n:04}"} for n in range(1000)]
    assert [int(text) for text in sample(rows, 400)] == list(range(0, 1000, 10))


def test_training_is_the_same_in_every_process() -> None:
    code = (
        "from data.tokenizer import BPE; import random; random.seed(1)\n"
        "text = ' '.join(''.join(random.choices('abcdeé', k=3)) for _ in range(20000))\n"
        "print(BPE(vocab_size=400, sample_bytes=None).train([{'text': text}] * 3).hash)"
    )

    def run(threads: str, hash_seed: str) -> str:
        env = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert not done.stderr
        return done.stdout

    assert run("1", "1") == run("8", "2") != ""
