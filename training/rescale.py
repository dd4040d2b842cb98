"""Which positions a trained model is evaluated with, and what that evaluation is called.

By default the trained scheme with its trained settings. `position.x=` alone edits the trained scheme. Another
scheme is accepted within the rotary family alone: a scheme without parameters would load into any checkpoint
without an error and measure nonsense. A setting comes from the command line, else from the trained run where
it has the same key, else from YAML.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from configs.schema import TrainConfig
from errors import UserError
from model.position import POSITIONS

Settings = dict[str, Any]
# With suffix and the mark of a draft (storage.replace) some 20 more: file systems allow 255 bytes
LONGEST_LABEL = 200
WORDS = ("none", "true", "false", "inf", "nan")  # what another type may look like


def evaluated_position(
    trained: TrainConfig, asked: Mapping[str, Any], given: list[str]
) -> Settings:
    """The scheme's name and settings.

    asked: what the command composed, empty without a `position=`; given: the dotted keys of the command line.
    """
    for key in given:
        if key.startswith("position.") and key.count(".") > 1:
            raise UserError(f"{key}: give {'.'.join(key.split('.')[:2])} as a whole")
    typed = {key: asked[key] for key in asked if f"position.{key}" in given}
    if "position" in given:
        kept = {key: value for key, value in trained.position.items() if key in asked}
        position = {**asked, **kept, "name": asked["name"], **typed}
    else:
        position = {**trained.position, **typed}
    refuse_strangers(trained.position["name"], str(position["name"]))
    return position


def refuse_strangers(trained: str, asked: str) -> None:
    family = POSITIONS[trained].family
    if trained == asked or asked not in POSITIONS or (family and POSITIONS[asked].family == family):
        return  # a name that there is not is build's to refuse
    rotary = ", ".join(name for name in POSITIONS if POSITIONS[name].family == "rotary")
    raise UserError(
        f"position={asked}: the run was trained with {trained}, and weights of one scheme mean"
        f" something to another only within the rotary family ({rotary})"
    )


def label(
    trained: Settings, evaluated: Settings, given: list[str], unusual: Mapping[str, str]
) -> str:
    """`<trained>`, or `<trained>--<evaluated>_<key>-<value>...`: the name of the result's files.

    The keys are those of positions that the command line gave, and what else is `unusual` about the evaluation.
    No two settings share a label: where a value cannot be read off it (it is long, holds characters that a file
    name may not, or could be of another type), a hash of all of them stands at its end.
    """
    if evaluated == trained and not unusual:
        return trained["name"]
    keys = {k.partition(".")[2] for k in given if k.startswith("position.")}
    named = {key: evaluated[key] for key in sorted(keys & evaluated.keys() - {"name"})}
    parts = [f"{key}-{value}" for key, value in [*named.items(), *unusual.items()]]
    text = "_".join([f"{trained['name']}--{evaluated['name']}", *parts])
    plain = re.fullmatch("[A-Za-z0-9._-]+", text) and len(text) <= LONGEST_LABEL
    if plain and all(map(_readable, named.values())):
        return text
    settings = json.dumps([trained["name"], evaluated, dict(unusual)], sort_keys=True, default=str)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:12]
    return f"{re.sub('[^A-Za-z0-9._-]', '-', text)[: LONGEST_LABEL - 13]}_{digest}"


def _readable(value: Any) -> bool:
    """Whether no other value of a setting looks like this one in a file's name, in capitals or not."""
    if not isinstance(value, str):
        return re.fullmatch(r"[A-Za-z0-9.-]+", str(value)) is not None  # no list, no 1e+16
    return re.fullmatch("[a-z][a-z0-9.]*", value) is not None and value not in WORDS
