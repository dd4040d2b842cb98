"""Different schemes in different layers: `layers` is a list that the layers go through in turn.

An entry is {name, window, settings of that scheme}. Production models do this: RoPE with a sliding
window in most layers, full attention without positions in the others, which alone have to reach far
(RNoPE-SWA, Yang et al. 2025, arXiv 2501.18795; Llama 4; SmolLM3). `window` says how many tokens a
layer sees, itself among them; null: all. Layers that come back to an entry share its object. A
scheme that adds to the token embeddings (sinusoidal, learned) does so for the whole model.
"""

from typing import Any

from configs.check import check, fit
from errors import UserError
from model.config import ModelConfig
from model.position.base import Position


class Hybrid(Position):
    """Only makes the others: no layer holds it."""

    def __init__(self, config: ModelConfig, *, layers: list[dict[str, Any]]):
        super().__init__(config)
        if not 1 <= len(layers) <= config.n_layers:
            raise UserError(
                f"position.layers has {len(layers)} entries: model.n_layers={config.n_layers} layers"
                " need at least one and can use no more than that"
            )
        entries = [
            entry_layers(config, f"position.layers[{n}]", entry) for n, entry in enumerate(layers)
        ]
        self.objects = [entries[i % len(entries)][i] for i in range(config.n_layers)]

    @classmethod
    def build(cls, config: ModelConfig, **settings: Any) -> list[Position]:
        return cls(config, **settings).objects


def entry_layers(config: ModelConfig, where: str, entry: dict[str, Any]) -> list[Position]:
    """What the entry would be in each layer, its window set; errors name the entry."""
    from model.position import POSITIONS

    if "window" not in entry:
        raise UserError(f"{where}.window is missing: null for all tokens, or how many a layer sees")
    window = fit(f"{where}.window", entry["window"], int | None)
    if window is not None and window < 1:
        raise UserError(f"{where}.window={window} must be at least 1")
    rest = {key: value for key, value in entry.items() if key != "window"}
    keywords = check(where, POSITIONS, rest)
    try:
        positions = POSITIONS[rest["name"]].build(config, **keywords)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    for position in positions:
        position.window = window if position.window is None else position.window
    return positions
