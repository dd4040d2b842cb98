"""Other people's models at our shape, each fed as its own documentation says.

transformers and x-transformers are installed with the tests. The others are imported from a checkout that the
user names (`nanogpt=/path`), as they are; nothing of them is copied. Each has the scheme of ours that it is
like: that one is what its time is compared with.

B batch, T tokens. A loss takes the module, perhaps compiled, and tokens (B, T + 1).
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.subjects import Shape
from errors import UserError

Loss = Callable[[Any, Tensor], Tensor]
Built = tuple[nn.Module, Loss]


class Absent(Exception):
    """Not on this machine, or not given."""


def cross_entropy(model: Any, tokens: Tensor) -> Tensor:
    """For models that return logits."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def llama(shape: Shape, path: str | None) -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",  # type: ignore
    )

    def loss(model: Any, tokens: Tensor) -> Tensor:  # it shifts the labels itself
        return model(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss

    return LlamaForCausalLM(config).train(), loss


def x_transformers(**scheme: Any) -> Callable[[Shape, str | None], Built]:
    """Without its AutoregressiveWrapper, whose loss goes through a transposed copy of the logits."""

    def build(shape: Shape, path: str | None) -> Built:
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(
            dim=shape.d_model,
            depth=shape.n_layers,
            heads=shape.n_heads,
            attn_dim_head=shape.d_model // shape.n_heads,
            attn_flash=True,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=shape.d_ff / shape.d_model,
            **scheme,
        )
        model = TransformerWrapper(
            num_tokens=shape.vocab_size,
            max_seq_len=shape.context,
            attn_layers=layers,
            use_abs_pos_emb=not scheme,
            tie_embedding=True,
        )
        return model, cross_entropy

    return build


def nanogpt(shape: Shape, path: str | None) -> Built:
    """GPT-2's block, its feed-forward 4 d wide, without biases: as many parameters as ours."""
    module = load_file("nanogpt", path, "model.py")
    config = module.GPTConfig(
        block_size=shape.context,
        vocab_size=shape.vocab_size,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.d_model,
        dropout=0.0,
        bias=False,
    )

    def loss(model: Any, tokens: Tensor) -> Tensor:  # it takes views of the targets
        return model(tokens[:, :-1], tokens[:, 1:].contiguous())[1]

    return module.GPT(config), loss


def litgpt(shape: Shape, path: str | None) -> Built:
    """Its Llama, the output layer tied by hand (it has no setting for that)."""
    put_first("litgpt", path)
    model_module, config_module = attempt("litgpt.model"), attempt("litgpt.config")
    config = config_module.Config(
        block_size=shape.context,
        padded_vocab_size=shape.vocab_size,
        vocab_size=shape.vocab_size,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.d_model,
        intermediate_size=shape.d_ff,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
    )
    model = model_module.GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    return model, cross_entropy


def lingua(shape: Shape, path: str | None) -> Built:
    """With PyTorch's attention, and tied by hand (its own tying names a layer that is not there)."""
    put_first("lingua", path)
    module = attempt("apps.main.transformer")
    arguments = module.LMTransformerArgs(
        dim=shape.d_model,
        n_layers=shape.n_layers,
        n_heads=shape.n_heads,
        vocab_size=shape.vocab_size,
        max_seqlen=shape.context,
        multiple_of=64,  # of 8/3 d: 704 at 256, 1024 at 384
    )
    model = module.LMTransformer(arguments)
    model.init_weights()
    model.output.weight = model.tok_embeddings.weight

    def loss(model: Any, tokens: Tensor) -> Tensor:
        return model(tokens[:, :-1], target=tokens[:, 1:], attn_impl="sdpa")

    return model, loss


def put_first(name: str, path: str | None) -> None:
    if path is None:
        raise Absent(f"not given: {name}=/path/to/{name}")
    if not Path(path).is_dir():
        raise UserError(f"{name}={path} is no folder")
    if path not in sys.path:
        sys.path.insert(0, path)


def attempt(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Absent(f"{module} cannot be imported: {error}") from None


def load_file(name: str, path: str | None, file: str) -> Any:
    """One file of a checkout, under a name that is no module of ours (nanoGPT's is called model)."""
    if path is None:
        raise Absent(f"not given: {name}=/path/to/{name}")
    place = Path(path) / file
    if not place.is_file():
        raise UserError(f"{name}={path} has no {file}")
    spec = importlib.util.spec_from_file_location(f"{name}_{place.stem}", place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Peer:
    like: str  # the scheme of ours that it is compared with
    build: Callable[[Shape, str | None], Built]
    path: str | None = None  # the option that gives its checkout


PEERS: Mapping[str, Peer] = {
    "transformers Llama": Peer("rope", llama),
    "x-transformers rotary": Peer("rope", x_transformers(rotary_pos_emb=True)),
    "x-transformers alibi": Peer("alibi", x_transformers(alibi_pos_bias=True)),
    "x-transformers learned": Peer("learned", x_transformers()),
    "nanoGPT": Peer("learned", nanogpt, "nanogpt"),
    "litgpt": Peer("rope", litgpt, "litgpt"),
    "lingua": Peer("rope", lingua, "lingua"),
}
