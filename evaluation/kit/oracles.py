"""Agreement with others: transformers' Llama, BLOOM, MPT, Falcon and T5; x-transformers.

Both libraries are imported when a check runs, so that the kit works without them. Llama's logits
are those of whole models with the same weights; where others' bodies differ from ours the scores
are compared, at distances j <= i.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evaluation.kit.forms import scores
from evaluation.kit.subjects import CONTEXT, LENGTH, Result, by_name, gap
from model.position.base import Position
from model.transformer import Transformer

NAMES = {
    "attn.wq": "self_attn.q_proj",
    "attn.wk": "self_attn.k_proj",
    "attn.wv": "self_attn.v_proj",
    "attn.wo": "self_attn.o_proj",
    "ffn.w1": "mlp.gate_proj",
    "ffn.w2": "mlp.down_proj",
    "ffn.w3": "mlp.up_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def llama(model: Transformer, rope: dict[str, Any]) -> Any:
    """transformers' Llama with our weights."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # it dislikes a trained length as short as ours
    c = model.config
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.d_model,
        intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        rms_norm_eps=c.norm_eps,
        max_position_embeddings=c.context_length,
        tie_word_embeddings=False,
        rope_parameters={"rope_theta": 10000.0, **rope},
    )
    state = {}
    for name, tensor in model.state_dict().items():
        name = name.removesuffix(".weight").replace("blocks.", "layers.")
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        name = {"embed": "embed_tokens", "head": "lm_head"}.get(name, name)
        state[name + ".weight" if name == "lm_head" else f"model.{name}.weight"] = tensor
    other = LlamaForCausalLM(config).eval()
    other.load_state_dict(state)
    return other


@torch.no_grad()
def llama_logits(
    option: str, rope: dict[str, Any], lengths: tuple[int, ...], **changes: Any
) -> Result:
    """A fresh oracle for each length: its dynamic scaling remembers the longest text so far."""
    s = by_name(option, **changes)
    model, errors = s.model(torch.float32), []
    for T in lengths:
        x = s.tokens(2, T)
        errors.append(gap(model(x), llama(model, rope)(x).logits))
    return Result(max(errors), 1e-4)


def our_scores(position: Position, x: Tensor | None = None) -> Tensor:
    """(H, T, T) for contiguous positions."""
    T = LENGTH if x is None else x.shape[1]
    x = torch.zeros(1, T, 1) if x is None else x
    pos = torch.arange(T)[None]
    clock = position.clock(x, pos) if position.form == "clock" else None
    return scores(position, clock, pos)[0]


def alibi_of(heads: int, **changes: Any) -> Tensor:
    return our_scores(by_name("alibi", **changes).model(n_heads=heads, n_kv_heads=1).positions[0])


def bloom_alibi() -> Result:
    """Theirs is slope · j, the same for a softmax."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    errors = []
    for heads in (1, 3, 6, 8, 12):
        theirs = build_alibi_tensor(torch.ones(1, LENGTH), heads, torch.float32)
        ours = alibi_of(heads)
        errors.append(gap(ours - ours[:, :, :1], (theirs - theirs[:, :, :1]).expand_as(ours)))
    return Result(max(errors), 1e-6)


def mpt_alibi() -> Result:
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    errors = []
    for heads, exponent in ((6, 8), (8, 8), (12, 8), (6, 5)):
        theirs = build_mpt_alibi_tensor(heads, LENGTH, alibi_bias_max=exponent)
        ours = alibi_of(heads, exponent=exponent)
        errors.append(gap(ours[:, -1:], theirs.view(heads, 1, LENGTH)))
    return Result(max(errors), 1e-6)


def falcon_slopes() -> Result:
    """The slopes alone, in bfloat16 as theirs are: Falcon scales the bias, ALiBi does not."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    errors = []
    for heads in (6, 8, 12):
        theirs = build_alibi_tensor(torch.ones(1, LENGTH), heads, torch.float32)[:, 0, 1]
        ours = (-alibi_of(heads)[:, 1, 0]).bfloat16()
        errors.append(gap(ours, theirs))
    return Result(max(errors), 0.0)


def t5_buckets() -> Result:
    from transformers.models.t5.modeling_t5 import T5Attention

    errors = []
    d = torch.arange(400)
    for buckets, furthest in ((32, 128), (16, 50)):
        s = by_name("t5", buckets=buckets, max_distance=furthest)
        model = s.build()
        with torch.no_grad():
            model.positions[0].get_parameter("table").copy_(torch.arange(float(buckets)))
        theirs = T5Attention._relative_position_bucket(-d, False, buckets, furthest)
        errors.append(gap(model.positions[0].distance(d)[0], theirs))
    return Result(max(errors), 0.0)


def xpos_products() -> Result:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    position = by_name("xpos", layout="interleaved").model().positions[0]
    D = position.config.d_head
    q, k = torch.randn(2, 1, 6, LENGTH, D, generator=torch.Generator().manual_seed(9))
    angles, size = RotaryEmbedding(D, use_xpos=True, scale_base=512)(torch.arange(LENGTH))
    theirs = apply_rotary_pos_emb(q, angles, size) @ apply_rotary_pos_emb(k, angles, size**-1).mT
    pos = torch.arange(LENGTH)
    ours, keys = position.rotate(q, k, pos, pos, LENGTH)
    return Result(gap((ours @ keys.mT).tril(), theirs.tril()), 1e-5)


@torch.no_grad()
def forget_gate() -> Result:
    from x_transformers.x_transformers import DataDependentAlibi

    position = by_name("fox").model(torch.float32).positions[0]
    C, H = position.config.d_model, position.config.n_heads
    theirs = DataDependentAlibi(C, H)
    linear: Any = theirs.to_forget_gates[0]
    linear.weight.copy_(position.get_parameter("weight"))
    linear.bias.copy_(position.get_parameter("bias"))
    x = torch.randn(1, CONTEXT, C, generator=torch.Generator().manual_seed(9))
    return Result(gap(our_scores(position, x).tril(), theirs(x)[0].tril()), 1e-5)


def waves() -> Result:
    """Theirs has all sines first, and its root mean square is 1/sqrt(C)."""
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    position = by_name("sinusoidal").model(torch.float32).positions[0]
    C = position.config.d_model
    theirs = ScaledSinusoidalEmbedding(C)(torch.empty(1, CONTEXT, C)).detach() * C**0.5
    theirs = theirs.unflatten(-1, (2, -1)).mT.flatten(-2)
    ours = position.embed(torch.zeros(1, CONTEXT, C), torch.arange(CONTEXT))[0]
    return Result(gap(ours, theirs), 1e-4)


def scaled(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "factor": 8.0, **more}


YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": CONTEXT}
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": CONTEXT,
}
LONG = {"original_max_position_embeddings": 400}
WHOLE, MANY = (LENGTH,), (20, CONTEXT, CONTEXT + 1, LENGTH)


def logits(
    option: str, rope: dict[str, Any], lengths: tuple[int, ...] = WHOLE, **changes: Any
) -> tuple[str, str, Callable[[], Result]]:
    name = ", ".join(["transformers' Llama", *(f"{k} {v}" for k, v in changes.items())])
    return option, name, partial(llama_logits, option, rope, lengths, **changes)


ORACLES: list[tuple[str, str, Callable[[], Result]]] = [  # (scheme, whose, check)
    logits("rope", {"rope_type": "default"}),
    logits("rope_linear", scaled("linear"), factor=8),
    logits("rope_dynamic", scaled("dynamic"), MANY, factor=8),
    logits("rope_yarn", scaled("yarn", **YARN), factor=8),
    logits("rope_yarn", scaled("yarn", **YARN | LONG), factor=8, original_context=400),
    logits("rope_llama3", scaled("llama3", **LLAMA3), factor=8),
    logits("rope_llama3", scaled("llama3", **LLAMA3 | LONG), factor=8, original_context=400),
    ("alibi", "transformers' BLOOM", bloom_alibi),
    ("alibi", "transformers' MPT", mpt_alibi),
    ("alibi", "transformers' Falcon, slopes", falcon_slopes),
    ("t5", "transformers' T5, buckets", t5_buckets),
    ("xpos", "x-transformers, products", xpos_products),
    ("fox", "x-transformers, forget gate", forget_gate),
    ("sinusoidal", "x-transformers, waves", waves),
]
