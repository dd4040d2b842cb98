"""Tokenizers: nothing of a text is lost, nothing in a text can end a document, training is the same
everywhere."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

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
