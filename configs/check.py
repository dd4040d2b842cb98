"""Values held against types: the dataclasses of schema.py (`made`), and settings that belong to a name (`build`).

The latter are the groups `position`, `data`, `tokenizer`, `tracker`: `{name: ..., **settings}`. The name stands in
an explicit table; the settings are exactly the keyword-only parameters of what the table names, and their
annotations are the schema. So a scheme, a corpus, a tracker is one class and one YAML file, and a wrong key or
type stops with one line before any work is done.
(Building a class that a string in a file names, as Hydra's `_target_` does, would run whatever a stranger's
checkpoint says.)
"""

import dataclasses
import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from errors import UserError

T = TypeVar("T")
LONGEST = 2**31  # tokens: no text, range of positions or stretch of one is longer


def build(
    group: str, table: Mapping[str, Callable[..., T]], settings: Mapping[str, Any], *given
) -> T:
    """What `settings["name"]` names in `table`, called with `given` and the checked settings."""
    keywords = check(group, table, settings)  # refuses a name that is not there
    return table[settings["name"]](*given, **keywords)


def check(
    group: str, table: Mapping[str, Callable[..., Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings without the name, each of its annotated type; UserError names `group.key` otherwise."""
    name = str(settings.get("name"))
    if name not in table:
        raise UserError(f"{group}.name={name} is unknown{nearest(name, table)}")
    parameters = {
        p.name: p.annotation
        for p in inspect.signature(table[name], eval_str=True).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    keywords = {key: value for key, value in settings.items() if key != "name"}
    for key in keywords:
        if key not in parameters:
            raise UserError(f"{group}.{key} is no setting of {name}{nearest(str(key), parameters)}")
    for key in parameters:
        if key not in keywords:
            raise UserError(f"{group}.{key} is missing: {name} needs it")
    return {key: fit(f"{group}.{key}", value, parameters[key]) for key, value in keywords.items()}


def made(schema: type, values: Any, prefix: str = "") -> Any:
    """An instance of the dataclass from a mapping that has exactly its keys, each value of the field's type."""
    fields = {f.name: f for f in dataclasses.fields(schema)}
    if not isinstance(values, Mapping):
        raise UserError(f"{prefix[:-1]}={values} must be a group of {', '.join(fields)}")
    for key in values:
        if key not in fields:
            raise UserError(f"{prefix}{key} is no known key{nearest(str(key), fields)}")
    arguments = {}
    for key, field in fields.items():
        if key in values and dataclasses.is_dataclass(field.type):
            arguments[key] = made(field.type, values[key], f"{prefix}{key}.")  # type: ignore[arg-type]
        elif key in values:
            arguments[key] = fit(f"{prefix}{key}", values[key], field.type)
        elif field.default_factory is dataclasses.MISSING:
            raise UserError(f"{prefix}{key} is missing")
    return schema(**arguments)


def refuse_odd(key: str, value: Any) -> None:
    """UserError for what no setting can be: a number that is none or overflows, a text that no file can hold."""
    if isinstance(value, Mapping | list):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in parts:
            refuse_odd(f"{key}.{name}", part)
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{key}={value} must be a finite number")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UserError(f"{key} is too large a number")
    if isinstance(value, str) and (
        "\0" in value or value != value.encode("utf-8", "ignore").decode()
    ):
        raise UserError(f"{key}={value!r} must be text in UTF-8, without NUL")


def within(key: str, value: float, low: float, high: float) -> None:
    """UserError unless low <= value <= high. `high` is where a number stops being meant or breaks a number format."""
    if not low <= value <= high:
        raise UserError(f"{key}={value} must be from {low} to {high}")


def nearest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean ...?)" or the list of what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there is {', '.join(known)}" if known else "; there is none"


def fit(key: str, value: Any, kind: Any) -> Any:
    """`value` as `kind`, where an integer may stand for a float; UserError names the key otherwise."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if (
        kind is Any
        or (origin is None and type(value) is kind)
        or (kind is type(None) and value is None)
    ):
        return value
    if kind is float and type(value) is int:
        return float(value)
    if origin is Literal and value in arguments and type(value) in {type(a) for a in arguments}:
        return value
    if origin is list and isinstance(value, list | tuple):
        return [fit(f"{key}[{i}]", x, arguments[0]) for i, x in enumerate(value)]
    if origin is dict and isinstance(value, Mapping):
        return {k: fit(f"{key}.{k}", x, arguments[1]) for k, x in value.items()}
    if origin in (typing.Union, types.UnionType):
        for choice in arguments:
            try:
                return fit(key, value, choice)
            except UserError:
                continue
    inside = 'in a list ["..."]' if key.endswith("]") else f"'{key}=\"...\"'"
    wants_text = is_number(value) and str in (kind, *arguments)
    quoted = f": put it in quotes, {inside}" if wants_text else ""
    raise UserError(f"{key}={value} must be {spelled(kind)}{quoted}")


def is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)


def spelled(kind: Any) -> str:
    """A type in words: "a number", "one of paper, code"."""
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is type(None):
        return "null"
    if origin is Literal:
        return "one of " * (len(arguments) > 1) + ", ".join(map(str, arguments))
    if origin is list:
        return f"a list, each {spelled(arguments[0])}"
    if origin is dict:
        return "a mapping"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spelled(a) for a in arguments)
    return words.get(kind, getattr(kind, "__name__", str(kind)))
