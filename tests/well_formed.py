"""Well-formed command lines of train.py at smoke size: any scheme with any of its settings, any shape of model."""

from conftest import SCHEMES
from hypothesis import strategies as st

CONTEXTS = st.integers(2, 24)


def numbers(low: float, high: float) -> st.SearchStrategy[str]:
    return st.floats(low, high, allow_subnormal=False).map(repr) | st.integers(
        -(-int(low) // 1), int(high)
    ).filter(lambda n: low <= n <= high).map(str)


def one_of(*words: str) -> st.SearchStrategy[str]:
    return st.sampled_from(words)


whole = st.integers
ROTARY = {
    "base": numbers(1.001, 1e7), "layout": one_of("split_half", "interleaved"), "keep": numbers(0, 1),
    "fraction": one_of("1.0", "1", "0.5"),
}  # fmt: skip
SCALED = {**ROTARY, "factor": numbers(1, 64), "original_context": one_of("null", "1", "16", "4096")}
PARTS = {**SCALED, "alpha": numbers(1e-3, 4), "beta": numbers(4.1, 64)}
SETTINGS = {  # a scheme that is not here is trained with the values of its YAML file
    "none": {}, "kerple_log": {}, "kerple_power": {}, "rope": ROTARY, "rope_linear": SCALED,
    "rope_ntk": SCALED, "rope_dynamic": SCALED, "rope_by_parts": PARTS, "rope_llama3": PARTS,
    "rope_yarn": {**PARTS, "ramp": one_of("paper", "code"), "temperature": numbers(0, 1)},
    "learned": {"rows": whole(48, 99).map(str), "extend": one_of("null", "clamp", "interpolate", "random"),
                "factor": numbers(1, 9), "seed": whole(0, 2**40).map(str)},
    "sinusoidal": {"base": numbers(1.001, 1e7)}, "alibi": {"exponent": numbers(0.01, 64)},
    "t5": {"buckets": whole(2, 40).map(str), "max_distance": whole(41, 500).map(str)},
    "fire": {"threshold": one_of("null", "1", "0.25", "1000"), "hidden": whole(1, 9).map(str)},
    "sandwich": {"base": numbers(1.001, 1e7), "width": whole(1, 9).map(lambda n: str(2 * n))},
    "fox": {"bias": numbers(-9, 9)},
    "xpos": {"base": numbers(1.001, 1e7), "layout": ROTARY["layout"], "gamma": numbers(0.01, 9),
             "scale_base": numbers(1, 9999)},
}  # fmt: skip


@st.composite
def position(draw) -> tuple[str, dict[str, str]]:
    scheme = draw(st.sampled_from(SCHEMES))
    if scheme != "hybrid":
        return scheme, {k: draw(values) for k, values in SETTINGS.get(scheme, {}).items()}
    entries = []
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from([s for s in SETTINGS if s != "learned"]))
        window = draw(one_of("null", "1", "5", "100"))
        parts = {"name": name, "window": window, **{k: draw(v) for k, v in SETTINGS[name].items()}}
        entries.append("{" + ", ".join(f"{k}: {v}" for k, v in parts.items()) + "}")
    return scheme, {"layers": f"[{', '.join(entries)}]"}


@st.composite
def well_formed(draw) -> list[str]:
    scheme, settings = draw(position())
    heads, context = draw(st.integers(1, 6)), draw(CONTEXTS)
    groups = draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))
    accumulate, parts = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    values = {
        "model.n_heads": heads, "model.n_kv_heads": groups, "model.n_layers": draw(st.integers(2, 3)),
        "model.d_model": heads * draw(st.sampled_from([4, 8, 12])), "model.d_ff": draw(st.integers(1, 40)),
        "model.tie_embeddings": draw(one_of("true", "false")), "context_length": context,
        "model.softmax_scale": draw(one_of("null", "log", "0.1", "2")), "precision": draw(one_of("fp32", "auto")),
        "train.steps": draw(st.integers(1, 2)), "train.batch_size": accumulate * parts,
        "train.accumulate": accumulate, "data.document_mask": draw(one_of("true", "false")),
        "train.position_range": draw(st.sampled_from(["null", context, 48])), "train.eval_tokens": 64,
        "tokenizer": draw(one_of("bytes", "bytes", "bpe")), "seed": draw(st.integers(0, 2**31 - 1)),
        "optim.weight_decay": draw(numbers(0, 1)), "optim.lr": draw(numbers(1e-9, 0.01)), "optim.min_lr": 0,
    }  # fmt: skip
    if values["tokenizer"] == "bpe":
        values["tokenizer.vocab_size"] = 300
    chosen = [f"position={scheme}", *(f"position.{k}={v}" for k, v in settings.items())]
    return [*chosen, *(f"{k}={v}" for k, v in values.items())]
