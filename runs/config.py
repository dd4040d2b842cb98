"""config.yaml: the fully resolved configuration of a run, in its folder and in each of its checkpoints.

A run folder may be somebody else's. Its configuration is plain YAML of a bounded size without aliases, and nothing in
it is ever interpolated: `${oc.env:...}` would put the reader's environment into a report.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from configs.check import made, refuse_odd
from configs.schema import TrainConfig
from errors import UserError
from storage import read_bounded

LARGEST = 2**18  # bytes; a hybrid of a hundred layers takes 20 thousand


class PlainLoader(yaml.SafeLoader):
    """YAML without aliases: ten lines of them can stand for a billion values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias (*name): every value must be written out")
        return super().compose_node(parent, index)


def load_config(folder: Path) -> TrainConfig:
    """The configuration in a folder (a run's, a checkpoint's), held against today's schema.

    Raises UserError where it is not one.
    """
    path = folder / "config.yaml"
    try:
        text = read_bounded(path, LARGEST).decode()
        if "${" in text or not isinstance(values := yaml.load(text, PlainLoader), dict):
            raise ValueError("it must be a mapping, with every value written out")
        config = made(TrainConfig, values)
        for key, value in values.items():
            refuse_odd(key, value)
        return config
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is no configuration of a run: {reason}") from None


def config_text(config: TrainConfig) -> str:
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"model": {"d_model": 4}} -> ("model.d_model", 4)."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
