"""Malformed command lines, drawn from the schema and the YAML files, each with a word that its refusal must hold."""

import dataclasses
import inspect
import types
import typing
from typing import Any

import yaml
from conftest import ROOT, SCHEMES
from hypothesis import strategies as st

from configs.schema import TrainConfig
from data.corpora import CORPORA
from data.tokenizer import TOKENIZERS
from model.position import POSITIONS
from training.tracker import TRACKERS

TABLES = {"position": POSITIONS, "data": CORPORA, "tokenizer": TOKENIZERS, "tracker": TRACKERS}
GROUPS = sorted({path.parent.name for path in (ROOT / "configs").glob("*/*.yaml")})
Case = tuple[list[str], str]


def fields(schema: type, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> annotation, of the dataclass and those in it; the named groups are left out."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        if dataclasses.is_dataclass(field.type):
            found |= fields(field.type, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        elif field.name not in TABLES:
            found[prefix + field.name] = field.type
    return found


def settings_of(group: str, option: str) -> dict[str, Any]:
    """Key -> annotation of an option of a named group."""
    parameters = inspect.signature(TABLES[group][option], eval_str=True).parameters.values()
    return {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}


KEYS = fields(TrainConfig)
OPTIONS = [(g, o) for g in TABLES for o in TABLES[g]]
VALUES = {  # by what Hydra reads them as
    "int": ["3", "-7", "0"],
    "float": ["1.5", "-0.25", "1e-3"],
    "odd": ["inf", "-inf", "nan", "1e999", "1" * 30],
    "bool": ["true", "False"],
    "str": ["abc", "''", '"3"', "a b", "x/y.z", "1_0_", "0x1f", "'[1]'"],
    "list": ["[1]", "[]", "[a,[b]]", "[{a: 1}]"],
    "dict": ["{a: 1}", "{}", "{a: {b: [1]}}"],
    "null": ["null"],
}


def accepted(kind: Any) -> set[str]:
    """The kinds of VALUES that an annotation may allow: nothing is said of the others."""
    origin = typing.get_origin(kind)
    if kind in (str, str | None):  # what is typed is the text
        return set(VALUES) - ({"null"} if kind is str else set())
    if origin in (typing.Union, types.UnionType):
        return set[str]().union(*(accepted(a) for a in typing.get_args(kind)))
    if kind is Any:
        return set(VALUES) - {"odd"}
    names = {int: "int", bool: "bool", str: "str", list: "list", dict: "dict", type(None): "null"}
    if kind is float:
        return {"int", "float"}
    return {names[k] for k in (kind, origin) if k in names}


@st.composite
def wrong_type(draw) -> Case:
    group, option = draw(st.sampled_from([(None, None), *OPTIONS]))
    if group is None:
        chosen, keys = [], {**KEYS, "train": dict, "optim": dict}
    else:
        chosen = [f"{group}={option}"]
        keys = {f"{group}.{k}": a for k, a in settings_of(group, option).items()}
    keys = {key: kind for key, kind in keys.items() if kind not in (str | None,)}  # takes anything
    if not keys:
        return draw(other_settings())
    key = draw(st.sampled_from(sorted(keys)))
    allowed = accepted(keys[key])
    pool = [v for k, vs in VALUES.items() if k not in allowed for v in vs]
    if "list" in allowed and "int" not in allowed:
        pool += ["[[1]]", "[null]"]
    value = draw(st.sampled_from(pool))
    files = ["data.train=[nothing.txt]"] if (option, key) == ("files", "data.held_out") else []
    return [*chosen, *files, f"{key}={value}"], key


NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,9}", fullmatch=True)


@st.composite
def unknown_key(draw) -> Case:
    parents = sorted({k.rpartition(".")[0] for k in KEYS} | set(TABLES))
    parent = draw(st.sampled_from(parents))
    mine = [k.removeprefix(parent).lstrip(".") for k in KEYS if k.startswith(parent)]
    mine += (
        list(settings_of(parent, draw(st.sampled_from(sorted(TABLES[parent])))))
        if parent in TABLES
        else []
    )
    word = draw(
        NAMES | st.sampled_from(sorted(mine) or ["x"]).map(lambda w: w[:-1] + w[-1] * 2 + "x")
    )
    known = {k for keys in (KEYS, *(settings_of(*o) for o in OPTIONS)) for k in keys}
    key = f"{parent}.{word}".lstrip(".")
    if {word, key} & {*known, *GROUPS, *parents, "name", "hydra"}:
        return draw(wrong_type())
    deeper = draw(st.sampled_from(["", "", ".a", ".b.c"]))
    sign = draw(st.sampled_from(["", "+", "++"]))
    return [f"{sign}{key}{deeper}={draw(st.sampled_from(['1', 'a', '[1]', 'null']))}"], word


BAD = {
    **dict.fromkeys(["train.steps", "train.batch_size", "train.accumulate", "train.keep"], "0 -1"),
    **dict.fromkeys(["train.log_every", "train.eval_tokens", "context_length"], "0 -5"),
    **dict.fromkeys(["train.eval_every", "train.save_every", "seed", "optim.warmup_steps"], "-1"),
    **dict.fromkeys(
        ["model.d_model", "model.n_layers", "model.d_ff", "model.n_heads"], f"0 -2 {2**40}"
    ),
    **dict.fromkeys(["optim.lr", "optim.eps", "optim.clip"], "0 -1e-3"),
    **dict.fromkeys(["optim.beta1", "optim.beta2"], "1 1.5 -0.1"),
    **dict.fromkeys(["optim.min_lr"], "-1e-9"),
    **{"optim.weight_decay": "-1 1e30", "seed": f"-1 {2**31} {2**62}", "precision": "fp8 FP32 32"},
    **{"train.position_range": f"1 0 {2**32}", "train.batch_size": f"{2**30} 0"},
    **{"model.n_kv_heads": "3 0", "model.norm_eps": "0 -1 1e300", "device": "meta cuda:x gpu 0"},
    **{"model.softmax_scale": "0 -1 loud 1e300", "tokenizer.vocab_size": f"0 256 {2**40}"},
    **{"tokenizer.sample_bytes": "0 -1", "resume": "nowhere", "init_from": "nowhere ./"},
    "context_length": f"0 -1 {2**40}",
}
BAD_POSITIONS = {
    "base": "1 0 -1e4 1e-300", "layout": "halves", "fraction": "0 1.01 -1 0.05", "keep": "-0.1 1.1",
    "factor": "0 0.99 -1 1e300", "original_context": f"0 -1 {2**40}", "alpha": "0 -1 1e308 1e-320",
    "beta": "0 1e-3 1e308", "ramp": "line", "temperature": "-1 1e300", "exponent": "0 -8 1e308",
    "threshold": "0 -1 1e300", "hidden": f"0 -1 {2**40}", "bias": "1e300 -1e300", "extend": "more",
    "rows": f"1 0 {2**40}", "buckets": f"1 0 {2**40}", "max_distance": f"1 0 {2**40}",
    "width": f"0 1 3 -2 {2**40}", "gamma": "0 -1", "scale_base": "0 -1 1e-300", "seed": "x",
    "layers": "[] [1] [{}] [{name:rope}] [{name:nope,window:1}] [{name:none,window:0}] [{window:2}]",
}  # fmt: skip
NEITHER = {"alpha": "position.", "beta": "position."}  # either may be named where they contradict


@st.composite
def out_of_range(draw) -> Case:
    if draw(st.booleans()):
        key = draw(st.sampled_from(sorted(BAD)))
        return [f"{key}={draw(st.sampled_from(BAD[key].split()))}"], key
    scheme = draw(
        st.sampled_from([s for s in SCHEMES if BAD_POSITIONS.keys() & settings_of("position", s)])
    )
    key = draw(st.sampled_from(sorted(BAD_POSITIONS.keys() & settings_of("position", scheme))))
    value = draw(st.sampled_from(BAD_POSITIONS[key].split()))
    return [f"position={scheme}", f"position.{key}={value}"], NEITHER.get(key, f"position.{key}")


BROKEN = [
    *"[{('\"=)]}", "[1", "{a", "{a:", "(1", "'a", '"a', "a=b", "=1", "[1,,2]", "{a:1", "a'b", "\0", "\udcff",
    "a\0b", "\u2029", "[\udcff]", "'\0'", "${", "${}", "${a", "${a:", "a,", ",", "[,]", "f(", "f(x)", "é", "数据",
    "${nothing}", "${oc.env:NOPE_}", "${nosuch:1}", "${.nothing}", "${..seed}x", "${seed:}", "${now}",
    "1,2", "range(1,3)", "choice(1,2)", "glob(*)", "interval(1,2)", "shuffle(1,2)", "sort(2,1)", "tag(a,1,2)",
]  # fmt: skip


@st.composite
def broken(draw) -> Case:
    key = draw(st.sampled_from([k for k, kind in KEYS.items() if kind in (int, float, bool)]))
    value = draw(st.sampled_from(BROKEN) | st.text(max_size=8).map(lambda t: f"[{t}"))
    return [f"{key}={value}"], key


@st.composite
def deleted_or_added(draw) -> Case:
    key = draw(
        st.sampled_from([*KEYS, "train", "optim", "position", "data", "model", "position.base"])
    )
    value = draw(st.sampled_from(["1", "x", "null"]))
    group = key in GROUPS
    if draw(st.booleans()):
        return [f"~{key}"], key.split(".")[0]
    return draw(
        st.sampled_from(
            [
                ([f"~{key}.more"], key.split(".")[-1]),
                ([f"~{key}={value}nonsense"], key.split(".")[-1]),
                ([f"+{key}={'rope' if group else 'x'}"], key.split(".")[-1]),
                ([f"++{key}@x={value}"], key.split(".")[-1]),
            ]
        )
    )


@st.composite
def group_trouble(draw) -> Case:
    group = draw(st.sampled_from(GROUPS))
    option = draw(
        st.sampled_from(sorted(p.stem for p in (ROOT / "configs" / group).glob("*.yaml")))
    )
    word = draw(NAMES)
    return draw(
        st.sampled_from(
            [
                ([f"{group}={word}_"], group), ([f"{group}="], group), ([f"{group}=null"], group),
                ([f"{group}=3"], group), ([f"{group}={{a: 1}}"], group), ([f"{group}=[{word}_]"], group),
                ([f"{group}=[3]"], group), ([f"{group}=${{nope}}"], group), ([f"{group}@a.b={option}"], group),
                ([f"+{group}@{word}_={option}"], word), ([f"{group}/{word}={option}"], group),
                ([f"{group}s={option}"], f"{group}s"), ([f"{group}={option},{option}"], group),
                ([f"{group}.name={word}_"], group),
                ([f"hydra.run.{word}_x=1"], word), (["hydra.run.dir="], "hydra.run.dir"),
                (["hydra.run.dir=/dev/null/x"], "hydra.run.dir"), ([f"hydra/launcher={word}_"], "hydra"),
                ([f"hydra.mode={word}_"], "hydra.mode"), (["hydra=1"], "hydra"), ([f"{word}"], word),
                ([f"={word}"], word), ([f"--config-name={word}_"], word), ([f"hydra.run.dir=[{word}]"], "hydra"),
            ]
        )
    )  # fmt: skip


@st.composite
def other_settings(draw) -> Case:
    """A setting of another option of the group."""
    group = draw(st.sampled_from(["position", "position", "tokenizer", "data"]))
    one, other = (draw(st.sampled_from(sorted(TABLES[group]))) for _ in "ab")
    theirs = sorted(settings_of(group, other).keys() - settings_of(group, one).keys())
    if not theirs:
        return ["position=alibi", "position.base=3"], "position.base"
    key = draw(st.sampled_from(theirs))
    values = yaml.safe_load((ROOT / "configs" / group / f"{other}.yaml").read_text())
    text = str(values[key]).replace("None", "null") if not isinstance(values[key], list) else "[]"
    return [f"{group}={one}", f"{group}.{key}={text}"], f"{group}.{key}"


@st.composite
def contradiction(draw) -> Case:
    heads, width = draw(st.sampled_from([(3, 32), (5, 32), (7, 48), (2, 33), (4, 66)]))
    scheme = draw(st.sampled_from([s for s in SCHEMES if POSITIONS[s].family == "rotary"]))
    return draw(
        st.sampled_from(
            [
                ([f"model.n_heads={heads}", f"model.d_model={width}"], "model.n_heads"),
                ([f"position={scheme}", "model.d_model=6", "model.n_heads=2"], "model.d_model"),
                (["train.accumulate=3"], "train.accumulate"),
                ([f"model.n_heads={heads}", f"model.d_model={heads * 4}", "model.n_kv_heads=9"], "n_kv_heads"),
                (["train.position_range=31"], "train.position_range"),
                (["position=learned", "train.position_range=64"], "32"),
                (["position=learned", "position.rows=31"], "position.rows"),
                (["position=t5", "position.buckets=64", "position.max_distance=32"], "max_distance"),
                (["position=rope_by_parts", "position.alpha=40"], "position.alpha"),
                (["context_length=1", "model.softmax_scale=log"], "softmax_scale"),
                (["position=hybrid", "model.n_layers=1"], "position.layers"),
            ]
        )
    )  # fmt: skip


def malformed() -> st.SearchStrategy[Case]:
    return st.one_of(
        wrong_type(), unknown_key(), out_of_range(), out_of_range(), broken(), broken(), broken(),
        broken(), deleted_or_added(), group_trouble(), group_trouble(), other_settings(), contradiction(),
    )  # fmt: skip
