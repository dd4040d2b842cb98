"""Checkpoints are whole or absent, safe to open, and free of wrappers' names."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from errors import UserError
from training import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.schemes = nn.ModuleList([nn.Linear(2, 2)])


def saved(folder, step=1, best=False):
    net = Net()
    checkpoint.save(folder, step, net, {"step": step, "optimizer": {}}, best=best)
    return net


def test_round_trip(tmp_path):
    net, other = saved(tmp_path), Net()
    path = checkpoint.find(tmp_path, "last")
    checkpoint.load_weights(other, path)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    assert other.head.weight is other.embed.weight
    assert checkpoint.load_state(path) == {"step": 1, "optimizer": {}}
    assert torch.load(path / "state.pt", weights_only=True)["step"] == 1


def test_a_compiled_model_saves_plain_names(tmp_path):
    net = Net()
    compiled = torch.compile(net)
    checkpoint.save(tmp_path, 1, net, {}, best=False)
    names = load_file(checkpoint.find(tmp_path, "last") / "model.safetensors").keys()
    assert names == {"embed.weight", "schemes.0.weight", "schemes.0.bias"}
    assert compiled is not net


def test_a_killed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    saved(tmp_path, 1, best=True)

    def half(state, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, 2)
    monkeypatch.undo()
    assert checkpoint.find(tmp_path, "last").name == "step-000001"
    checkpoint.verify(checkpoint.find(tmp_path, "last"))
    saved(tmp_path, 2)  # over what was left behind
    checkpoint.verify(checkpoint.find(tmp_path, "last"))
    assert checkpoint.find(tmp_path, "last").name == "step-000002"


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_damage_is_named(tmp_path, name, damage):
    saved(tmp_path)
    path = checkpoint.find(tmp_path, "last")
    data = bytearray((path / name).read_bytes())
    if damage == "cut":
        (path / name).write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 0x55
        (path / name).write_bytes(data)
    else:
        (path / name).unlink()
    with pytest.raises(UserError, match=path.name):
        checkpoint.load_weights(Net(), path)


def test_a_model_of_another_shape_is_refused(tmp_path):
    saved(tmp_path)
    other = Net()
    other.schemes = nn.ModuleList([nn.Linear(3, 2)])
    path = checkpoint.find(tmp_path, "last")
    with pytest.raises(UserError, match=r"schemes\.0\.weight"):
        checkpoint.load_weights(other, path)
    checkpoint.load_weights(other, path, own_schemes=True)
    assert torch.equal(other.embed.weight, load_file(path / "model.safetensors")["embed.weight"])


def test_pruning_keeps_the_newest_and_the_best(tmp_path):
    for step in range(1, 6):
        saved(tmp_path, step, best=step == 2)
    checkpoint.prune(tmp_path, keep=2)
    left = sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))
    assert left == ["step-000002", "step-000004", "step-000005"]


def test_manifest_names_every_file(tmp_path):
    saved(tmp_path)
    path = checkpoint.find(tmp_path, "last")
    manifest = json.loads((path / "manifest.json").read_text())
    assert {p.name for p in path.iterdir()} == {*manifest, "manifest.json"}
    for name, known in manifest.items():
        assert (path / name).stat().st_size == known["bytes"]
