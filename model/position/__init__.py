"""The table of position schemes, the only place where a scheme's name means something.

A row maps the name to the class; the class's keyword-only parameters are exactly the keys of
`configs/position/<option>.yaml`.
"""

from collections.abc import Mapping
from typing import Any

from configs.check import check
from model.config import ModelConfig
from model.position.alibi import ALiBi
from model.position.base import Position
from model.position.fire import FIRE
from model.position.fox import FoX
from model.position.hybrid import Hybrid
from model.position.kerple import KerpleLog, KerplePower
from model.position.learned import Learned
from model.position.rope import RoPE
from model.position.rope_by_parts import ByPartsRoPE
from model.position.rope_scaled import DynamicRoPE, LinearRoPE, NTKRoPE
from model.position.rope_yarn import YaRN
from model.position.sandwich import Sandwich
from model.position.sinusoidal import Sinusoidal
from model.position.t5 import T5
from model.position.xpos import XPos

POSITIONS: dict[str, type[Position]] = {
    "none": Position,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rope": RoPE,
    "rope_linear": LinearRoPE,
    "rope_ntk": NTKRoPE,
    "rope_dynamic": DynamicRoPE,
    "rope_by_parts": ByPartsRoPE,
    "rope_yarn": YaRN,
    "rope_llama3": ByPartsRoPE,
    "xpos": XPos,
    "alibi": ALiBi,
    "t5": T5,
    "kerple_log": KerpleLog,
    "kerple_power": KerplePower,
    "fire": FIRE,
    "sandwich": Sandwich,
    "fox": FoX,
    "hybrid": Hybrid,
}


def build_positions(config: ModelConfig, settings: Mapping[str, Any]) -> list[Position]:
    """One entry a layer, often the same object.

    settings: `name` and the scheme's own keywords; UserError names a wrong one.
    """
    keywords = check("position", POSITIONS, settings)
    return POSITIONS[settings["name"]].build(config, **keywords)
