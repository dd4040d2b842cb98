"""Identities that a right measurement of real runs must have, whatever the scheme, the protocol and the length."""

import math
import shutil
from glob import glob
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SCHEMES

from data.corpora import CORPORA
from data.prepare import prepare_split
from data.tokenizer import Tokenizer
from evaluation import results
from runs.config import load_config
from tests.evaluated import PROTOCOLS, SAME, by_length, evaluate
from training import checkpoint, run
from training.optim import build_optimizer
from training.saving import Saver


def edit_weights(folder: Path, change) -> None:
    """Overwrite weights of the run's last checkpoint through our own writer."""
    path = checkpoint.find(folder, "last")
    config, tokenizer = run.open_checkpoint(folder, path)
    model = run.build_model(config, tokenizer.vocab_size)
    checkpoint.load_weights(model, path)
    _, _, state = checkpoint.load_state(path)
    with torch.no_grad():
        change(model)
    optimizer, scaler = build_optimizer(model, config.optim), torch.amp.GradScaler("cpu")
    Saver(folder, config, tokenizer, model, optimizer, scaler, path).save(state)


@pytest.mark.parametrize("position", SCHEMES)
def test_equal_logits_score_ln_v(fresh, position):
    folder = fresh(position)
    edit_weights(folder, lambda model: model.norm.weight.zero_())
    vocabulary = Tokenizer.load(folder / "tokenizer.json").vocab_size
    found = evaluate(folder, PROTOCOLS, "eval.multiples=[1,3]")
    rows = [r for r in found["rows"] if r["supported"]]
    assert {r["protocol"] for r in rows} == {
        "same_tokens", "non_overlapping", "sliding", "per_position",
    }  # fmt: skip
    for row in rows:
        assert row["loss"] == pytest.approx(math.log(vocabulary), abs=1e-6)


@pytest.mark.parametrize("position", [s for s in SCHEMES if s not in ("sinusoidal", "learned")])
def test_without_context_every_length_is_equal(fresh, position):
    """Attention and MLP outputs zeroed: a scheme that does not add to embeddings has nothing left to differ by."""
    folder = fresh(position)

    def silence(model):
        for block in model.blocks:
            block.attn.wo.weight.zero_()
            block.ffn.w2.weight.zero_()

    edit_weights(folder, silence)
    losses = [r["loss"] for r in by_length(evaluate(folder, *SAME), "same_tokens").values()]
    assert max(losses) - min(losses) < 1e-6


def test_batch_size_and_repetition_change_nothing(fresh):
    folder = fresh("alibi")
    found = []
    for windows in (1, 3, 8, 8):
        shutil.rmtree(folder / "eval", ignore_errors=True)
        evaluate(folder, PROTOCOLS, "lengths=[64]", f"eval.tokens_per_batch={64 * windows}")
        found.append(results.load(folder / "eval/alibi.json"))
    for other in found[1:]:
        for a, b in zip(found[0].rows, other.rows, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], abs=1e-6)
        for a, b in zip(found[0].scores, other.scores, strict=True):
            assert np.abs(a.nats - b.nats).max() < 1e-5
    assert found[2].rows == found[3].rows
    assert all(map(np.array_equal, *([s.nats for s in f.scores] for f in found[2:])))


def test_what_a_window_cannot_see_does_not_matter(fresh):
    """Two layers of window 32 see 63 tokens: rope at 128 and at 256 tokens reads the same."""
    folder = fresh("rope")
    evaluate(folder, *SAME, "lengths=[32,128,256]", "windows=[full,trained,48]")
    found = results.load(folder / "eval/rope.json")
    nats = {
        (row["window"], row["context_length"]): scores.nats
        for row, scores in zip(found.rows, found.scores, strict=True)
    }
    assert nats.keys() == {(w, n) for w in (None, 32, 48) for n in (32, 128, 256)} - {
        (32, 32), (48, 32),
    }  # fmt: skip
    assert np.abs(nats[32, 128] - nats[32, 256]).max() < 1e-5
    assert np.abs(nats[None, 128] - nats[None, 256]).max() > 1e-4
    assert np.abs(nats[32, 128] - nats[48, 128]).max() > 1e-4


def test_bos_is_one_setting_of_all_protocols(fresh):
    folder = fresh("learned")
    protocols = [PROTOCOLS, "lengths=[32,64]"]
    plain, other = evaluate(folder, *protocols), evaluate(folder, *protocols, "eval.bos=true")
    assert (plain["bos"], other["bos"], other["label"]) == (
        False,
        True,
        "learned--learned_bos-true",
    )
    for a, b in zip(plain["rows"], other["rows"], strict=True):
        assert all(a[key] == b[key] for key in (*results.ROW_KEY, "target_set", "supported"))
        assert a["supported"] == (a["context_length"] == 32)  # N inputs stay N inputs
        assert (a["loss"] != b["loss"]) or not a["supported"]


def test_words_are_those_of_the_text_where_a_corpus_has_words(fresh, monkeypatch):
    folder = fresh("rope")
    quick = [PROTOCOLS, "lengths=[64]"]
    assert {r["words"] for r in evaluate(folder, *quick)["rows"]} == {None}
    shutil.rmtree(folder / "eval")
    monkeypatch.setattr(CORPORA["files"], "words", True)
    (pattern,) = load_config(folder).data["test"]
    words = sum(len(Path(file).read_text().split()) for file in glob(pattern))
    for row in evaluate(folder, *quick)["rows"]:
        if row["protocol"] in ("non_overlapping", "sliding"):
            assert row["words"] == words
            assert row["word_ppl"] == pytest.approx(math.exp(row["nats"] / words))
        else:
            assert (row["words"], row["word_ppl"]) == (None, None)


def test_token_counts_add_up(fresh):
    folder = fresh("rope")
    result = evaluate(folder, PROTOCOLS, "lengths=[32,64]")
    config = load_config(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    settings = {k: v for k, v in config.data.items() if k != "name"}
    split = prepare_split(CORPORA["files"](**settings), "test", tokenizer)
    sizes = [len(split.document(d)) for d in range(len(split))]
    size = sum(int(split.token_bytes[split.document(d)[1:]].sum()) for d in range(len(split)))
    for protocol in ("non_overlapping", "sliding"):  # every token but a document's first
        for row in by_length(result, protocol).values():
            assert (row["tokens_scored"], row["bytes_scored"]) == (sum(sizes) - len(sizes), size)
    for length in (32, 64):
        rows = [
            r["tokens_scored"]
            for r in result["rows"]
            if (r["protocol"], r["context_length"]) == ("per_position", length)
        ]
        assert sum(rows) == sum((n - 1) // length * length for n in sizes)
    assert {r["tokens_scored"] for r in by_length(result, "same_tokens").values()} == {256}
    assert result["data_hash"] == split.hash and result["tokenizer_hash"] == tokenizer.hash
