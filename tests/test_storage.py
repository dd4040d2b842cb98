"""A file is the old one or the new one, whatever happens to the writer."""

import os
import sys
from pathlib import Path

import pytest
from conftest import SMALL, command

from errors import UserError
from storage import digest, replace, replace_text
from training.metrics import MetricsFile


def test_a_writer_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file"
    replace_text(path, "old")

    def half(file):
        file.write(b"ne")
        raise OSError("no space left on device")

    with pytest.raises(UserError, match=f"{path} cannot be written: no space"):
        replace(path, half)
    assert path.read_text() == "old"
    replace_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_text() == "new"


def test_digest(tmp_path):
    import hashlib

    (tmp_path / "a").write_bytes(b"abc" * 100_000)
    assert digest(tmp_path / "a") == hashlib.sha256(b"abc" * 100_000).hexdigest()


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file a descriptor is")
def test_what_is_renamed_is_on_the_disk_before_and_its_folder_after(corpus, tmp_path, monkeypatch):
    """All that a run puts into its place, and the metrics before any checkpoint that knows of them."""
    done: list[tuple[str, Path]] = []

    def recorded(name: str, what, found):
        def call(*arguments, **named):
            done.append((name, found(*arguments)))
            return what(*arguments, **named)

        return call

    opened = lambda descriptor: Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: E731
    monkeypatch.setattr(os, "fsync", recorded("fsync", os.fsync, opened))
    for name in ("replace", "rename"):
        target = lambda old, new: (Path(old).absolute(), Path(new).absolute())  # noqa: E731
        monkeypatch.setattr(os, name, recorded("rename", getattr(os, name), target))
    write = MetricsFile.log
    monkeypatch.setattr(MetricsFile, "log", recorded("log", write, lambda *_: Path()))
    monkeypatch.chdir(tmp_path)
    cache = f"data.cache_dir={tmp_path}/cache"
    arguments = [*corpus[:-1], cache, "train.save_every=5", "hydra.run.dir=outputs/rope/a"]
    assert command("train", *SMALL, *arguments) == 0
    renamed = [(at, *paths) for at, (name, paths) in enumerate(done) if name == "rename"]
    flushed = [path if name == "fsync" else None for name, path in done]
    assert len([new for _, _, new in renamed if new.name.startswith("step-")]) >= 4
    for at, old, new in renamed:
        if any(part.endswith(".partial") for part in new.parts):
            continue  # inside what is still a draft: all of it is flushed when it takes its name
        assert old in flushed[:at], f"{new} was not flushed"
        assert new.parent in flushed[at:], f"the folder of {new} was not flushed"
        if new.name.startswith("step-"):
            logged = max(i for i in range(at) if done[i][0] == "log")
            assert any(p and p.name == "metrics.jsonl" for p in flushed[logged:at]), new
