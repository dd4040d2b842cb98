"""The soak run itself, small: kills land, and what it compares would show a difference of one bit."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from benchmarks.soak import plain


@pytest.mark.slow
def test_killed_training_ends_in_the_same_bits(tmp_path):
    out = tmp_path / "soak.json"
    arguments = ["--kills", "5", "--steps", "40", "--seed", "3", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["bit_identical"] and found["kills"] == sum(found["kills_by_phase"].values()) == 5
    assert len(found["kills_by_phase"]) > 1 and found["attempts"] >= 6


def test_one_bit_is_a_difference():
    state = {"a": [torch.zeros(3), 1], "b": {0: torch.ones(2, dtype=torch.float16)}}
    assert plain(state) == plain({"a": [torch.zeros(3), 1], "b": {0: torch.ones(2).half()}})
    for other in (-torch.zeros(3), torch.zeros(3).double(), torch.tensor([0, 0, 1e-45])):
        assert plain(state) != plain({**state, "a": [other, 1]})
