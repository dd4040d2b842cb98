"""Let a trained run write: python generate.py run=latest prompt="To be"

Decoding keeps keys and values of all tokens so far (model/cache.py), so that a new token costs one pass over
the cache; text may grow past the trained context wherever the position scheme is defined.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import TYPE_CHECKING

from configs.check import LONGEST, within
from configs.cli import alone, command
from configs.schema import GenerateConfig
from errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from model.transformer import Transformer


NOT_ONE_PASS = (
    "what it keeps of a token was computed when the text was shorter, so one pass over the whole"
    " text (as eval.py makes) gives other probabilities"
)


def generate(config: GenerateConfig, given: list[str]) -> None:
    import torch

    from runs.find import find_run
    from training import checkpoint, run
    from training.positions import HELD_OUT, draw
    from training.precision import Precision, choose_device
    from training.rescale import evaluated_position

    check(config)
    folder = find_run(config.run)
    path = checkpoint.find(folder, config.checkpoint)
    trained, tokenizer = run.open_checkpoint(folder, path)
    device = choose_device(config.device)
    precision = Precision.choose(config.precision, device)
    position = evaluated_position(trained, config.position, given)
    model = run.build_model(dataclasses.replace(trained, position=position), tokenizer.vocab_size)
    checkpoint.load_weights(model, path)
    model = model.to(device).eval()

    prompt = tokenizer.encode(config.prompt) or [tokenizer.eos]  # a document starts after an end
    reach = trained.train.position_range
    limit = min(model.max_length or math.inf, reach or math.inf)
    if len(prompt) + config.tokens > limit + 1:
        raise UserError(
            f"tokens={config.tokens}: {position['name']} positions end at {limit}, and the prompt takes {len(prompt)}: "
            f"tokens={max(0, limit + 1 - len(prompt))} is the most"
        )
    pos = draw(reach, len(prompt) + config.tokens - 1, HELD_OUT)
    with torch.inference_mode(), precision.autocast():
        ids = decode(
            model,
            torch.tensor([prompt], device=device),
            pos=None if pos is None else pos.to(device),
            tokens=config.tokens,
            temperature=config.temperature,
            top_k=config.top_k,
            eos=tokenizer.eos,
            generator=torch.Generator().manual_seed(config.seed),
        )
    if differs_from_one_pass(model, len(prompt), len(ids)):
        print(
            f"note: {position['name']} turns a text by its length: {NOT_ONE_PASS}", file=sys.stderr
        )
    written = config.prompt + tokenizer.decode([i for i in ids if i != tokenizer.eos])
    print(printable(written, sys.stdout.encoding))


def printable(text: str, encoding: str) -> str:
    """The text with an escape for what a terminal of that encoding cannot show, or would obey (ESC, CR, ...)."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def differs_from_one_pass(model: Transformer, prompt: int, new: int) -> bool:
    """Whether a pass over the whole text would give other probabilities than decoding did.

    prompt, new: tokens given at first, and tokens decoded from them, one pass each.
    """
    read = prompt + new - 1
    return new > 1 and any(position.varies_at(read) for position in model.positions[:-1])


def check(config: GenerateConfig) -> None:
    within("tokens", config.tokens, 0, LONGEST)
    within("seed", config.seed, 0, 2**63 - 1)
    if config.temperature:  # 0: no drawing
        within("temperature", config.temperature, 1e-3, 1e3)
    if config.top_k is not None and config.top_k < 1:
        raise UserError(f"top_k={config.top_k} must be at least 1, or null")


def decode(
    model: Transformer,
    prompt: Tensor,
    *,
    pos: Tensor | None = None,
    tokens: int,
    temperature: float,
    top_k: int | None,
    eos: int,
    generator: torch.Generator,
) -> list[int]:
    """Up to `tokens` new ids after prompt (1, T), the last of them eos if the document ends there.

    pos: positions (T + tokens - 1,) of all that is read, by default 0, 1, 2, ...
    """
    from model.cache import Cache

    cache, text, new = Cache.empty(model.config.n_layers), prompt, []
    while len(new) < tokens:
        here = slice(cache.length, cache.length + text.shape[1])
        x = model.features(text, pos=None if pos is None else pos[here], cache=cache, last=1)
        logits = model.head(x[0, -1]).float().cpu()  # (V,)
        new.append(pick(logits, temperature, top_k, generator))
        if new[-1] == eos:
            break
        text = prompt.new_tensor([[new[-1]]])
    return new


def pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """One id from logits (V,): the likeliest at temperature 0, else drawn from the top_k likeliest."""
    if temperature == 0:
        return int(logits.argmax())
    values, ids = logits.topk(min(top_k or len(logits), len(logits)))
    return int(ids[(values / temperature).softmax(-1).multinomial(1, generator=generator)])


main = command("generate", GenerateConfig, alone(generate))

if __name__ == "__main__":
    main()
