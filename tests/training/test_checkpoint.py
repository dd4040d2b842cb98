"""Checkpoints are whole or not used, safe to open, and free of wrappers' names."""

import errno
import json
import os
import pickle

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from configs.schema import OptimSettings
from data.tokenizer import Bytes
from errors import UserError
from runs.config import load_config
from training import checkpoint, run
from training.checkpoint import State
from training.optim import build_optimizer
from training.saving import Saver

ADAM = OptimSettings(
    lr=0.1, min_lr=0.0, warmup_steps=0, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.schemes = nn.ModuleList([nn.Linear(2, 2)])


@pytest.fixture
def saved(smoke, tmp_path):
    """saved(step, best_step, wrapper): a checkpoint of a small network in tmp_path; the network."""
    config = load_config(smoke("rope"))
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def save(step=1, best_step=None, wrap=lambda net: net):
        net = Net()
        optimizer = build_optimizer(net, ADAM)
        net.embed.weight.sum().backward()
        optimizer.step()
        state = State(data_hash="x", precision="fp32", step=step, best_step=best_step)
        saver = Saver(tmp_path, config, Bytes().train([]), wrap(net), optimizer, scaler, None)
        saver.save(state)
        return net

    return save


def names(folder):
    return sorted(p.name for p in (folder / "checkpoints").glob("*step*"))


def test_round_trip(tmp_path, saved):
    net, other = saved(), Net()
    path = checkpoint.find(tmp_path, "last")
    config, tokenizer = run.open_checkpoint(tmp_path, path)
    checkpoint.load_weights(other, path)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert other.head.weight is other.embed.weight
    _, _, state = checkpoint.load_state(path)
    assert state == State(data_hash="x", precision="fp32", step=1)
    assert config.position["name"] == "rope" and tokenizer.vocab_size == 257
    assert torch.load(path / "state.pt", weights_only=True)["step"] == 1


WRAPPERS = {
    "compile": torch.compile,
    "module": nn.DataParallel,  # as DDP, it holds the model as `module`; needs no process group
    "compile of module": lambda net: torch.compile(nn.DataParallel(net)),
    "module of compile": lambda net: nn.DataParallel(torch.compile(net)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_leave_no_name_behind(tmp_path, saved, wrap):
    net = saved(wrap=wrap)
    assert any(n.startswith(("_orig_mod.", "module.")) for n in wrap(Net()).state_dict())
    path = checkpoint.find(tmp_path, "last")
    stored = load_file(path / "model.safetensors")
    assert stored.keys() == {"embed.weight", "schemes.0.weight", "schemes.0.bias"}
    for other in (Net(), wrap(Net())):
        checkpoint.load_weights(other, path)
        assert torch.equal(checkpoint.unwrapped(other).embed.weight, net.embed.weight)


def test_a_killed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch, saved):
    saved(1)
    monkeypatch.setattr(os, "replace", lambda *_: os._exit(9))
    if (child := os.fork()) == 0:  # killed when all is written and nothing is renamed
        saved(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert names(tmp_path) == [".draft-step-000002", "step-000001"]
    assert checkpoint.find(tmp_path, "last").name == "step-000001"
    monkeypatch.undo()
    saved(3)
    assert names(tmp_path) == ["step-000001", "step-000003"]
    assert checkpoint.find(tmp_path, "last").name == "step-000003"


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("broken", "file"),
    [
        ("training.saving.save_file", "model.safetensors"),
        ("training.saving.write_state", "state.pt"),
        ("data.tokenizer.Tokenizer.save", "tokenizer.json"),
        ("training.saving.Path.write_text", "manifest.json"),
        ("training.saving.os.replace", "step-000002"),
        ("storage.os.fsync", "model.safetensors"),
    ],
)
def test_a_full_disk_is_one_line_and_costs_nothing(tmp_path, monkeypatch, saved, broken, file):
    saved(1)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.setattr(broken, full)
    with pytest.raises(UserError, match=rf"{file} cannot be written: No space left on device$"):
        saved(2)
    monkeypatch.undo()
    assert {p: p.read_bytes() for p in before} == before
    assert not [n for n in names(tmp_path) if n.startswith(".")]
    checkpoint.find(tmp_path, "last")


FILES = sorted(checkpoint.FILES | {"manifest.json"})


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "flip", "zero", "gone"])
def test_damage_is_named_or_passed_over(tmp_path, saved, name, damage):
    saved(1)
    saved(2, best_step=2)
    spoil(tmp_path / "checkpoints/step-000002" / name, damage)
    with pytest.raises(UserError, match=f"step-000002/{name}"):
        checkpoint.find(tmp_path, "2")
    with pytest.warns(UserWarning, match=f"step-000002/{name}.*the checkpoint before it"):
        assert checkpoint.find(tmp_path, "last").name == "step-000001"
    spoil(tmp_path / "checkpoints/step-000001" / name, damage)
    with pytest.warns(UserWarning), pytest.raises(UserError, match="has no whole checkpoint"):
        checkpoint.find(tmp_path, "last")
    saved(2)  # written again over the damaged one
    assert checkpoint.find(tmp_path, "last").name == "step-000002"


def spoil(path, damage):
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else bytes(len(data)))


def test_no_flipped_bit_of_a_manifest_gets_through(tmp_path, saved):
    saved(1)
    path = tmp_path / "checkpoints/step-000001"
    manifest = path / "manifest.json"
    whole = manifest.read_bytes()
    known = json.loads(whole)
    for i in range(len(whole)):
        data = bytearray(whole)
        data[i] ^= 1 << i % 7
        manifest.write_bytes(data)
        try:
            checkpoint.verify(path)
        except UserError:
            continue
        assert json.loads(data) == known  # a blank that became another blank


@pytest.mark.parametrize("pointer", ["last", "best"])
@pytest.mark.parametrize("text", ["", "step-000001", "step-000009", "../../elsewhere", "\0\0"])
def test_pointers_are_for_people(tmp_path, saved, pointer, text):
    saved(1, best_step=1)
    saved(2, best_step=1)
    assert (tmp_path / "checkpoints/last").read_text() == "step-000002"
    assert (tmp_path / "checkpoints/best").read_text() == "step-000001"
    (tmp_path / "checkpoints" / pointer).write_text(text)
    assert checkpoint.find(tmp_path, "last").name == "step-000002"
    assert checkpoint.find(tmp_path, "best").name == "step-000001"
    (tmp_path / "checkpoints" / pointer).unlink()
    assert checkpoint.find(tmp_path, "best").name == "step-000001"


def test_what_is_not_there_is_named(tmp_path, saved):
    with pytest.raises(UserError, match="has no whole checkpoint"):
        checkpoint.find(tmp_path, "last")
    saved(3)
    for which in ("best", "4", "x", "-1"):
        with pytest.raises(UserError, match=r"checkpoints has step-000003; give last, best or a"):
            checkpoint.find(tmp_path, which)
    (tmp_path / "checkpoints/step-000009 copy").mkdir()
    assert checkpoint.find(tmp_path, "last").name == "step-000003"


def test_nothing_in_a_checkpoint_is_executed(tmp_path, saved):
    """Not even where somebody has made the manifest fit."""
    saved(1)
    path = tmp_path / "checkpoints/step-000001"
    loaded = torch.load(path / "state.pt", weights_only=True)

    class Harm:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "harm"),))

    (path / "state.pt").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(UserError, match=r"state\.pt holds no state of a run"):
        checkpoint.load_state(path)
    torch.save({**loaded, "tracker_id": Harm()}, path / "state.pt")
    with pytest.raises(UserError, match=r"state\.pt holds no state of a run"):
        checkpoint.load_state(path)
    torch.save({**loaded, "stranger": 1}, path / "state.pt")
    with pytest.raises(UserError, match="stranger"):
        checkpoint.load_state(path)
    (path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read"):
        checkpoint.load_weights(Net(), path)
    text = (path / "config.yaml").read_text()
    for config in (text.replace("device: cpu", "device: !!python/name:os.mkdir"), "a: [", "", "5"):
        (path / "config.yaml").write_text(config)
        with pytest.raises(UserError, match=r"config\.yaml is no configuration of a run"):
            load_config(path)
    (path / "config.yaml").write_text(text.replace("device: cpu", "device: ${oc.env:HOME}"))
    with pytest.raises(UserError, match="every value written out"):
        load_config(path)
    assert not (tmp_path / "harm").exists()


def test_a_model_of_another_shape_is_refused(tmp_path, saved):
    saved()
    other = Net()
    other.schemes = nn.ModuleList([nn.Linear(3, 2)])
    path = checkpoint.find(tmp_path, "last")
    with pytest.raises(UserError, match=r"schemes\.0\.weight"):
        checkpoint.load_weights(other, path)
    assert checkpoint.load_but_schemes(other, path, same=True) == ["schemes.0.weight"]
    assert torch.equal(other.embed.weight, load_file(path / "model.safetensors")["embed.weight"])


def test_pruning_keeps_the_newest_and_the_best(tmp_path, saved):
    for step in range(1, 6):
        saved(step, best_step=min(step, 2))
    assert names(tmp_path) == ["step-000002", "step-000004", "step-000005"]


def test_a_damaged_newer_checkpoint_costs_no_good_one(tmp_path, saved):
    """Going on from 1 after 8 was damaged: what is kept are the newest of the run that goes on."""
    saved(1)
    saved(8)
    spoil(tmp_path / "checkpoints/step-000008/state.pt", "cut")
    for step in (2, 3):
        saved(step)
    assert names(tmp_path) == ["step-000002", "step-000003", "step-000008"]


def test_the_manifest_names_every_file(tmp_path, saved):
    saved()
    path = checkpoint.find(tmp_path, "last")
    manifest = json.loads((path / "manifest.json").read_text())
    assert {p.name for p in path.iterdir()} == {*manifest, "manifest.json"}
    for name, known in manifest.items():
        assert (path / name).stat().st_size == known["bytes"]
