"""The label of an evaluation: short ones say what was set, and no two settings share one."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import replace_text
from training.rescale import label

ROPE = {"name": "rope", "base": 10000.0, "layout": "half", "fraction": 1.0}
LONG = [{"name": "rope_yarn", "window": None, "base": 10000.0 + n} for n in range(40)]


def labelled(position: dict, *keys: str, trained: dict = ROPE, **more: str) -> str:
    return label(trained, position, [f"position.{key}" for key in keys], more)


@pytest.mark.parametrize(
    ("position", "keys", "more", "wanted"),
    [
        (ROPE, [], {}, "rope"),
        (ROPE, ["base"], {}, "rope"),
        ({**ROPE, "base": 500.0}, ["base"], {}, "rope--rope_base-500.0"),
        ({**ROPE, "base": 500}, ["base"], {}, "rope--rope_base-500"),
        ({**ROPE, "layout": "paper", "base": 1e-05}, ["layout", "base"], {}, "rope--rope_base-1e-05_layout-paper"),
        ({"name": "rope_linear", "factor": 4}, ["factor"], {}, "rope--rope_linear_factor-4"),
        ({"name": "rope_linear", "factor": 4}, [], {}, "rope--rope_linear"),
        ({"name": "rope_ntk", "length": None}, ["length"], {}, "rope--rope_ntk_length-None"),
        ({**ROPE, "bias": -1.5}, ["bias"], {}, "rope--rope_bias--1.5"),
        (ROPE, [], {"split": "validation", "checkpoint": "10"}, "rope--rope_split-validation_checkpoint-10"),
        (ROPE, [], {"precision": "bf16", "bos": "true"}, "rope--rope_precision-bf16_bos-true"),
    ],
)  # fmt: skip
def test_what_can_be_read_off_a_label_stands_in_it_alone(position, keys, more, wanted):
    assert labelled(position, *keys, **more) == wanted


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a b", "a-b"),
        ("a/b", "a:b"),
        ("é", "è"),
        ([{"name": "rope"}], [{"name": "ntk-"}]),
        (LONG, [*LONG[:-1], {"name": "rope", "window": 3}]),
        ("x" * 500, "x" * 501),
        ("1", 1),
        ("None", None),
        ("true", True),
        ("True", True),
        ("nan", float("nan")),
        ("1e5", 1e5),
        (1e16, "1e-16"),
        ("Clamp", "clamp"),
        ("a_b-c", "a-b-c"),
        ("", "-"),
        ("../..", ".."),
        ([1, 2], "-1--2-"),
    ],
)
def test_settings_that_look_alike_have_two_labels(one, other):
    labels = [labelled({**ROPE, "extend": value}, "extend") for value in (one, other)]
    # on a file system that knows no capitals, too
    assert labels[0].lower() != labels[1].lower()
    again = [labelled({**ROPE, "extend": value}, "extend") for value in (one, other)]
    assert labels == again


def test_a_value_cannot_pass_for_another_setting():
    one = labelled({"name": "rope", "a": "b_c-d", "c": "e"}, "a")
    other = labelled({"name": "rope", "a": "b", "c": "d"}, "a", "c")
    assert one != other


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text("aA1_-. é/", max_size=9)
)
VALUES |= st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=2), max_size=9)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(["base", "factor", "ramp"]), VALUES), st.data())
def test_any_settings_make_a_name_for_a_file(position, data):
    other = data.draw(st.dictionaries(st.sampled_from(["base", "factor", "ramp"]), VALUES))
    labels = [labelled({"name": "rope_yarn", **p}, *p) for p in (position, other)]
    for name in labels:
        assert name.isascii() and not set(name) & set("/\\ :*?\"'<>|\0") and len(name) <= 200
    same = repr(sorted(position.items())) == repr(sorted(other.items()))
    assert (labels[0].lower() == labels[1].lower()) == same


def test_the_longest_label_leaves_room_for_a_draft(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 4194304)  # the highest that Linux gives
    longest = labelled({**ROPE, "layers": LONG}, "layers")
    assert len(longest) == 200
    replace_text(tmp_path / f"{longest}.json", "{}")
    assert (tmp_path / f"{longest}.json").exists()
