"""Malformed command lines of eval.py, generate.py and compare.py, each with a word that its refusal must hold."""

from hypothesis import strategies as st
from malformed import BROKEN, VALUES, fields

from configs.schema import CompareConfig, EvalConfig, GenerateConfig

ELSEWHERE = {"eval": EvalConfig, "generate": GenerateConfig, "compare": CompareConfig}
BAD_ELSEWHERE = {
    "eval": {
        "run": "nowhere [] {a:1} 3 no*where [nowhere] null", "checkpoint": "first 999 -1 1.5 \u0663",
        "split": "tests 3", "lengths": f"[] [0] [-1] [a] 32 [{2**40}] [1e300]", "window": "0 -1 1.5 a",
        "protocols": "[] [same] same_tokens [3] [[same_tokens]]", "precision": "fp8", "device": "meta x",
        "eval.targets": "0 -32 33 1.5 a", "eval.block": "0 -1 1e300", "eval.multiples": "[] [a] [0] [-1] 2 [1e300]",
        "eval.stride": "0 -1", "eval.tokens_per_batch": "0 -1", "position": "alibi none nope null 3 []",
        "position.base": "-1 abc nan null [1]", "position.bas": "1", "position.name": "alibi [x] nope",
        "position.base.x": "3", "tracker": "nope null", "model.d_model": "3", "context_length": "9", "lenghts": "[1]",
    },
    "generate": {
        "run": "nowhere [] 3 null", "checkpoint": "first 999 -1", "prompt": "null", "tokens": "-1 a 1.5",
        "temperature": "-1 1e-320 1e300 nan a", "top_k": "0 -1 a", "seed": "-1 a 1.5", "position.fraction": "2 0",
        "device": "meta", "precision": "half", "train.steps": "3", "tokns": "3",
    },
    "compare": {
        "runs": "[nowhere] [] [3] nowhere 3 null [no*where]", "out": "null", "protocol": "same 3",
        "tracker": "nope null 3", "tracker.name": "x", "model": "tiny", "run": "x",
    },
}  # fmt: skip


@st.composite
def malformed_elsewhere(draw) -> tuple[str, list[str], str]:
    name = draw(st.sampled_from(sorted(ELSEWHERE)))
    if draw(st.booleans()):
        bad = BAD_ELSEWHERE[name]
        key = draw(st.sampled_from(sorted(bad)))
        return name, [f"{key}={draw(st.sampled_from(bad[key].split()))}"], key.split(".")[0]
    texts = (str, str | None)  # what is typed there is the text
    keys = {key: kind for key, kind in fields(ELSEWHERE[name]).items() if kind not in texts}
    key = draw(st.sampled_from(sorted(keys)))
    value = draw(st.sampled_from([*BROKEN, *VALUES["odd"]]))
    return name, [f"{key}={value}"], key.split(".")[-1]
