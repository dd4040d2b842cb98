"""Which positions a trained model is evaluated with, and what that evaluation is called.

By default the trained scheme with its trained settings. `position.x=` alone edits the trained scheme. Another
scheme is accepted within the rotary family alone: a scheme without parameters would load into any checkpoint
without an error and measure nonsense. A setting comes from the command line, else from the trained run where
it has the same key, else from YAML.
"""

from collections.abc import Mapping
from typing import Any

from configs.schema import TrainConfig
from errors import UserError
from model.position import POSITIONS

Settings = dict[str, Any]


def evaluated_position(
    trained: TrainConfig, asked: Mapping[str, Any], given: list[str]
) -> Settings:
    """The scheme's name and settings.

    asked: what the command composed, empty without a `position=`; given: the dotted keys of the command line.
    """
    typed = {key: asked[key] for key in asked if f"position.{key}" in given}
    if "position" not in given:
        position = {**trained.position, **typed}
    else:
        refuse_strangers(trained.position["name"], asked["name"])
        kept = {key: value for key, value in trained.position.items() if key in asked}
        position = {**asked, **kept, **typed, "name": asked["name"]}
    return position


def refuse_strangers(trained: str, asked: str) -> None:
    family = POSITIONS[trained].family
    if trained == asked or (family and POSITIONS[asked].family == family):
        return
    rotary = ", ".join(name for name in POSITIONS if POSITIONS[name].family == "rotary")
    raise UserError(
        f"position={asked}: the run was trained with {trained}, and weights of one scheme mean"
        f" something to another only within the rotary family ({rotary})"
    )


def label(trained: Settings, evaluated: Settings, given: list[str]) -> str:
    """`<trained>`, or `<trained>--<evaluated>_<key>-<value>...` with the keys of the command line."""
    if evaluated == trained:
        return trained["name"]
    keys = [k.partition(".")[2] for k in given if k.startswith("position.")]
    named = [f"{key}-{evaluated[key]}" for key in sorted(keys)]
    text = "_".join([f"{trained['name']}--{evaluated['name']}", *named])
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in text)
