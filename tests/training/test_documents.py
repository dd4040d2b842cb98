"""`data.document_mask=true`: training and val/loss are what each document gives by itself, summed token by token."""

import json
import random
from pathlib import Path

import pytest
import torch
from conftest import command
from trained import records

from configs.check import build
from data.corpora import CORPORA
from data.loader import Loader
from data.prepare import prepare_split
from data.tokenizer import Tokenizer
from training import checkpoint, run

CONTEXT, BATCH = 24, 8
SHAPE = [
    "experiment=smoke",
    "tracker=none",
    "device=cpu",
    "tokenizer=bytes",
    f"context_length={CONTEXT}",
    f"train.batch_size={BATCH}",
    "train.log_every=1",
    "train.steps=2",
    "optim.warmup_steps=0",
    "data=files",
    "data.train=[train.jsonl]",
    "data.validation=[held.jsonl]",
    "data.test=[]",
    "data.cache_dir=cache",
]


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch):
    """Documents from one byte to three windows: most windows hold several."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(4)
    for name, count, letters in (("train", 60, "abcd "), ("held", 23, "efgh ")):
        rows = [
            "".join(rng.choices(letters, k=int(80 * rng.random() ** 2) + 1)) for _ in range(count)
        ]
        Path(f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in rows))


def train(name: str, *overrides: str) -> Path:
    assert command("train", *SHAPE, *overrides, f"hydra.run.dir={name}") == 0
    return Path(name)


def alone(model, split, starts: list[int], masked: bool) -> tuple[float, int]:
    """Nats and targets of windows that begin there, each document of them in a call of its own.

    A target that begins a document is told by nothing in its own: it is no target.
    """
    nats, count, N = 0.0, 0, len(split.tokens)
    firsts = set(split.offsets.tolist())
    for start in starts:
        at = [(start + i) % N for i in range(CONTEXT + 1)]
        borders = [i for i in range(1, CONTEXT + 1) if masked and at[i] % N in firsts]
        for a, b in zip([0, *borders], [*borders, CONTEXT + 1], strict=True):
            piece = torch.tensor([[int(split.tokens[t]) for t in at[a:b]]])
            if b - a > 1:
                with torch.no_grad():
                    nats += model(piece[:, :-1], piece[:, 1:]).double().sum().item()
                count += b - a - 1
    return nats, count


def opened(folder: Path):
    config = run.load_config(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    corpus = build("data", CORPORA, config.data)
    model = run.build_model(config, tokenizer.vocab_size)
    return config, model, [prepare_split(corpus, s, tokenizer) for s in ("train", "validation")]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("position", ["sinusoidal", "rope_dynamic", "t5", "fox"])
def test_losses_are_those_of_the_documents_alone(position, masked):
    short = ["position.original_context=9"] if position == "rope_dynamic" else []
    mask = f"data.document_mask={'true' if masked else 'false'}"
    folder = train("run", f"position={position}", *short, mask)
    config, model, (text, held_out) = opened(folder)
    model.reset(config.seed)
    settings = {"context_length": CONTEXT, "batch_size": BATCH, "document_mask": False}
    first = Loader(text, seed=config.seed, **settings)
    nats, count = alone(model, text, [first._start(g) for g in range(BATCH)], masked)
    found = records(folder)
    assert found[0]["train/loss"] == pytest.approx(nats / count, rel=2e-6)
    checkpoint.load_weights(model, checkpoint.find(folder, "last"))
    windows = len(held_out.tokens) // CONTEXT
    assert windows % BATCH  # the last batch is no whole one
    loader = Loader(held_out, seed=0, **settings)
    nats, count = alone(model, held_out, [loader._start(g) for g in range(windows)], masked)
    assert found[-1]["val/loss"] == pytest.approx(nats / count, rel=2e-6)
    assert masked == (count < windows * CONTEXT)


@pytest.mark.parametrize("masked", ["false", "true"])
@pytest.mark.parametrize("rest", [[], ["train.position_range=70"]], ids=["plain", "drawn"])
def test_parts_of_a_batch_change_nothing(masked, rest):
    found = [
        records(train(f"run{n}", f"train.accumulate={n}", f"data.document_mask={masked}", *rest))
        for n in (1, 2, 8)
    ]
    for other in found[1:]:
        for key in ("train/loss", "train/grad_norm", "val/loss", "val/bpb"):
            of_all, of_parts = ([r[key] for r in run if key in r] for run in (found[0], other))
            assert of_parts == pytest.approx(of_all, rel=1e-5), key


@pytest.mark.parametrize("rest", [[], ["train.position_range=70"]], ids=["plain", "drawn"])
def test_held_out_loss_does_not_depend_on_the_batch_size(rest):
    """With a learning rate of almost nothing: the same weights."""
    still = ["position=sinusoidal", "optim.lr=1e-30", "optim.min_lr=0", "train.steps=1"]
    losses = []
    for n in (1, 3, 8, 64):
        last = records(train(f"run{n}", f"train.batch_size={n}", *still, *rest))[-1]
        losses.append([last["val/loss"], last["val/bpb"]])
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-6)


def test_a_window_of_one_token_is_refused(capfd):
    assert (
        command("train", *SHAPE, "context_length=1", "data.document_mask=true", "hydra.run.dir=one")
        == 1
    )
    assert "data.document_mask=true needs a context_length of at least 2" in capfd.readouterr().err
    assert not Path("one").exists()
