"""Shared by all tests: the commands called in process, a small corpus, and one short run of each scheme that
asks for it."""

import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
SMALL = ["experiment=smoke", "tracker=none", "device=cpu", "data=files", "tokenizer.vocab_size=300"]
SCHEMES = sorted(path.stem for path in (ROOT / "configs/position").glob("*.yaml"))


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors: two threads only wait for each other."""
    torch.set_num_threads(1)


def command(name: str, *arguments: str, once: bool = True) -> int:
    """`python <name>.py <arguments>` in this process; the exit code.

    once: compose the configuration a single time. Hydra does it twice, first to learn whether this is a sweep.
    """
    # Here: a machine with a GPU may have torch and pytest alone
    from hydra._internal.hydra import Hydra
    from hydra.types import RunMode

    module = __import__(name)
    sweep = any(word in ("-m", "--multirun") or "hydra.mode" in word for word in arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{name}.py", *arguments])
        if once and not sweep:
            patch.setattr(Hydra, "get_mode", lambda *_, **__: RunMode.RUN)
        try:
            module.main()
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
                return 1
            return stop.code or 0
    return 0


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> list[str]:
    """Overrides that point data=files at three small texts with some structure to learn."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 7))) for _ in range(60)]
    for split, documents in (("train", 6), ("validation", 2), ("test", 3)):
        for d in range(documents):
            lines, word = [], rng.choice(words)
            for _ in range(120):
                line = []
                for _ in range(8):
                    line.append(word)
                    near = words.index(word) + rng.randint(1, 5)  # a word predicts the next one
                    word = words[near % len(words)]
                lines.append(" ".join(line))
            (folder / f"{split}{d}.txt").write_text("\n".join(lines))
    paths = {s: f"data.{s}=[{folder}/{s}*.txt]" for s in ("train", "validation", "test")}
    return [*paths.values(), f"data.cache_dir={folder}/cache"]


@pytest.fixture(scope="session")
def smoke(tmp_path_factory, corpus) -> Callable[..., Path]:
    """smoke("rope", *overrides): the folder of a short run, trained once a session and only ever read."""
    made: dict[tuple[str, ...], Path] = {}

    def run(position: str, *overrides: str) -> Path:
        key = (position, *overrides)
        if key not in made:
            folder = tmp_path_factory.mktemp("runs")
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                name = f"hydra.run.dir={folder}/outputs/{position}/run"
                arguments = [f"position={position}", *SMALL, *corpus, *overrides, name]
                assert command("train", *arguments) == 0
            made[key] = folder / "outputs" / position / "run"
        return made[key]

    return run


@pytest.fixture
def fresh(smoke, tmp_path, monkeypatch):
    """A copy of a run that a test may write to; the working folder is beside it."""

    def copy(position: str, *overrides: str) -> Path:
        folder = tmp_path / "outputs" / position / "run"
        if not folder.exists():
            shutil.copytree(smoke(position, *overrides), folder)
        return folder

    monkeypatch.chdir(tmp_path)
    return copy


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Evaluated runs of several schemes and seeds, made up, to be compared."""
    from tests.evaluation.report_runs import write_sweep

    return write_sweep(tmp_path_factory.mktemp("sweep"))
