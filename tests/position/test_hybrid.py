"""Which layers of a hybrid share a scheme's object, and so its weights."""

import pytest
import torch
from omegaconf import OmegaConf

from evaluation.kit.subjects import CONFIGS, by_name, subjects

ENTRIES = {
    s.option: {**s.settings, "window": None}
    for s in subjects(variants=False)
    if s.option != "hybrid"
}


@pytest.mark.parametrize("scheme", ENTRIES)
def test_layers_that_return_to_an_entry_have_what_that_scheme_gives_its_layers(scheme: str) -> None:
    """One object for all, or one each where a layer has weights of its own: as without a hybrid."""
    other = {**ENTRIES["kerple_log" if scheme != "kerple_log" else "t5"], "window": 9}
    plain = by_name(scheme).build(n_layers=3).positions
    net = by_name("hybrid", layers=[ENTRIES[scheme], other]).build(n_layers=6)
    mine, others = net.positions[0::2], net.positions[1::2]
    assert len(set(mine)) == len(set(plain)) and len(set(others)) == 1
    assert not set(mine) & set(others)
    assert [p.window for p in net.positions] == [None, 9] * 3
    own = sum(p.numel() for position in set(plain) for p in position.parameters())
    extra = sum(p.numel() for p in others[0].parameters())
    assert sum(p.numel() for p in net.schemes.parameters()) == own + extra


def test_two_equal_entries_have_weights_of_their_own() -> None:
    net = by_name("hybrid", layers=[ENTRIES["t5"], ENTRIES["t5"]]).build(n_layers=4)
    a, b, c, d = net.positions
    assert a is c and b is d and a is not b
    assert not torch.equal(a.get_parameter("table"), b.get_parameter("table"))


def test_the_file_is_rnope_swa() -> None:
    """RoPE with a window, and full attention without positions by turns."""
    layers = OmegaConf.to_container(OmegaConf.load(CONFIGS / "hybrid.yaml"))["layers"]  # type: ignore
    assert [entry["name"] for entry in layers] == ["rope", "none"]
    assert layers[0]["window"] is not None and layers[1]["window"] is None
