"""Checks of what must hold whatever the formula is: causality, caching, documents, compilation.

Where two computations are the same operations on the same numbers the bound is 0, bit for bit.
"""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from errors import UserError
from evaluation.kit.agreement import relative
from evaluation.kit.formulas import Reference
from evaluation.kit.reference import REFERENCES
from evaluation.kit.subjects import CONTEXT, LENGTH, Result, Subject, gap
from model.cache import Cache
from model.transformer import Transformer


def formulas(s: Subject) -> set[type[Reference]]:
    """Of all layers."""
    entries = s.settings.get("layers", [s.settings])
    return {REFERENCES.get(entry["name"], Reference) for entry in entries}


def is_relative(s: Subject) -> bool:
    return all(formula.relative for formula in formulas(s))


def shift(s: Subject) -> Result:
    """A thousand added to all positions changes nothing."""
    x, pos = s.tokens(), torch.arange(s.length)
    model = s.model()
    return Result(gap(model.features(x, pos=pos + 1000), model.features(x, pos=pos)), 1e-5)


def causality(s: Subject) -> Result:
    """Other tokens after t change nothing up to t, at any positions, bit for bit."""
    model, x, t, errors = s.model(torch.float32), s.tokens(), s.length // 2, []
    other = x.clone()
    other[:, t + 1 :] = (x[:, t + 1 :] + 1) % model.config.vocab_size
    for kind in (None, "clamped", "restarted", "sorted", "random", "backwards"):
        pos = None if kind is None else s.positions(kind)
        a, b = model.features(x, pos=pos), model.features(other, pos=pos)
        if gap(a[:, t + 1 :], b[:, t + 1 :]) == 0:
            raise AssertionError("the changed tokens changed nothing at all")
        errors.append(gap(a[:, : t + 1], b[:, : t + 1]))
    return Result(max(errors), 0.0)


def cache(s: Subject) -> Result:
    """Token by token, in two chunks split anywhere, with positions, with a window: as in one pass.

    In three layers, up to the length from which the scheme says that its layers vary (`varies_at`);
    what it says beyond is `cache_beyond`'s.
    """
    model = s.model(torch.float32, n_layers=3)
    T = min(s.length, 25, same_up_to(model))
    x, errors = s.tokens(2, T), []
    whole, memory = model.features(x), Cache.empty(3)
    for t in range(T):
        rest = model.features(x[:, t:], cache=copy(memory))
        errors.append(gap(rest, whole[:, t:]))
        step = model.features(x[:, t : t + 1], cache=memory)
        errors.append(gap(step[:, 0], whole[:, t]))
    pos = s.positions("sorted", T)
    for ends in ([5, 6, T], [min(20, T - 1), T]):
        for p, window in ((pos, None), (None, 9)):
            got = chunks(model, x, ends, p, window)
            want = model.features(x, pos=p, window=window)
            errors.append(gap(got[:, ends[-2] :], want[:, ends[-2] :]))
    return Result(max(errors), 2e-5)


def same_up_to(model: Transformer) -> int:
    """The longest text that no layer turns by its length."""
    return next((n - 1 for n in range(1, 4 * LENGTH) if varies(model, n)), 4 * LENGTH)


def varies(model: Transformer, length: int) -> bool:
    return any(position.varies_at(length) for position in model.positions)


def cache_beyond(s: Subject) -> Result:
    """Beyond the context: the fewest layers say of the last token what a pass over the text so far does.

    So do three layers of a scheme that does not look at the length; of one that says it does
    (`varies_at`) they must not, or it would say so for nothing.
    """
    T, errors = s.length, []
    for layers in (s.shallow, 3):
        model, x = s.model(torch.float32, n_layers=layers), s.tokens(2, T)
        memory = Cache.empty(layers)
        steps = [model.features(x[:, t : t + 1], cache=memory)[:, 0] for t in range(T)]
        errors.append(max(gap(steps[t], model.features(x[:, : t + 1])[:, t]) for t in (1, T - 1)))
    if errors[0] > 2e-5 or not varies(s.model(torch.float32, n_layers=3), T):
        return Result(max(errors), 2e-5)
    return Result(errors[1], 1e-3, least=True)


def copy(memory: Cache) -> Cache:
    """Appending to one leaves the other as it is."""
    return replace(memory, layers=[replace(layer) for layer in memory.layers])


def chunks(
    model: Transformer,
    x: Tensor,
    ends: list[int],
    pos: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Features (B, T, C), computed with a cache in chunks that end there."""
    memory, parts, start = Cache.empty(model.config.n_layers), [], 0
    for end in ends:
        p = None if pos is None else pos[..., start:end]
        parts.append(model.features(x[:, start:end], pos=p, window=window, cache=memory))
        start = end
    return torch.cat(parts, dim=1)


def neighbours(s: Subject) -> Result:
    """A row alone, and among other rows, with the same positions and with other ones."""
    model, x, pos = s.model(), s.tokens(3), s.positions("sorted")
    alone = model.features(x[:1])
    together = model.features(x)[:1]
    own = model.features(x[:1], pos=pos[0])
    beside = model.features(x[:2], pos=pos)[:1]
    return Result(max(gap(together, alone), gap(beside, own)), 1e-6)


def call_order(s: Subject) -> Result:
    """A short text after long ones and cached decoding: as in a fresh model, bit for bit."""
    x, model = s.tokens(), s.build(torch.float32)
    want = model.features(x[:, :20])
    model = s.build(torch.float32)
    model.features(x)
    chunks(model, x, [9, s.length])
    model.features(x, pos=s.positions("clamped"))
    return Result(gap(model.features(x[:, :20]), want), 0.0)


def swap(s: Subject) -> Result:
    """Two past tokens change places: one layer's last output follows; without positions not."""
    model, x = s.model(n_layers=s.shallow), s.tokens()
    other = x.clone()
    other[:, [2, s.length - 4]] = x[:, [s.length - 4, 2]]
    change = gap(model.features(other)[:, -1], model.features(x)[:, -1])
    silent = formulas(s) == {Reference} or s.settings.get("keep") == 0
    return Result(change, 1e-12) if silent else Result(change, 1e-4, least=True)


def documents_apart(s: Subject) -> Result:
    """Documents in one window: each is as it is alone, whatever its neighbours say, bit for bit."""
    model, T = s.model(torch.float32), s.length
    x, borders = s.tokens(2, T), [0, T // 8, T // 2 + 3, T - 1, T]
    segments = torch.bucketize(torch.arange(T), torch.tensor(borders[1:]), right=True).expand(2, T)
    packed, errors = model.features(x, segments=segments), []
    for a, b in pairwise(borders):
        other = (x + 1) % model.config.vocab_size
        other[:, a:b] = x[:, a:b]
        changed = gap(model.features(other, segments=segments)[:, a:b], packed[:, a:b])
        # A clock's running sum goes on through all: it cancels inside a document, but for rounding.
        if changed > (1e-6 if "clock" in s.forms else 0):
            return Result(changed, 0.0)
        errors.append(gap(packed[:, a:b], model.features(x[:, a:b])))
    return Result(max(errors), 2e-5)


def materialised(s: Subject) -> Result:
    """Built without memory, given memory full of NaN, loaded: as the saved one, bit for bit."""
    saved = s.model(torch.float32)
    with torch.device("meta"):
        model = Transformer(s.config(), s.settings)
    model = model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data.fill_(float("nan"))
    state = saved.state_dict()
    extra = set(state) - {name for name, _ in saved.named_parameters(remove_duplicate=False)}
    if extra:
        raise AssertionError(f"saved beside the parameters: {sorted(extra)}")
    model.load_state_dict(state)
    model.requires_grad_(False)  # as the saved one: learned scores train on another kernel
    return Result(gap(model.features(s.tokens()), saved.features(s.tokens())), 0.0)


def paired_weights(s: Subject) -> Result:
    """The same seed draws the same weights outside the scheme as for no positions at all."""
    mine, plain = (Transformer(s.config(), given) for given in (s.settings, {"name": "none"}))
    mine.reset(7)
    plain.reset(7)
    state = mine.state_dict()
    return Result(max(gap(state[name], p) for name, p in plain.state_dict().items()), 0.0)


def limit(s: Subject) -> Result:
    """Beyond `max_length` a text is refused in a line that names both lengths; else all is finite."""
    model = s.model()
    N, missed = model.max_length, 0.0
    if N is not None:
        x = torch.zeros(1, N + 1, dtype=torch.long)
        for tokens, pos in ((x, None), (x[:, :1], torch.tensor([N]))):
            try:
                model.features(tokens, pos=pos)
                missed += 1
            except UserError as error:
                missed += not (str(N) in str(error) and str(N + 1) in str(error))
    finite = model.features(torch.zeros(1, min(N or 300, 300), dtype=torch.long)).isfinite().all()
    return Result(missed if finite else torch.inf, 0.0)


def compiled(s: Subject) -> Result:
    """One graph, equal to eager."""
    torch.compiler.reset()
    model = s.model(torch.float32, n_layers=s.shallow)
    x = s.tokens(2, min(s.length, CONTEXT + 8))
    got = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    return Result(gap(got, model(x)), 1e-5)


def compiled_training(s: Subject, backend: str = "aot_eager") -> Result:
    """One graph with documents and a loss, forward and backward."""
    torch.compiler.reset()
    eager, model = (s.build(torch.float32, n_layers=s.shallow) for _ in "ab")
    x = s.tokens(2, CONTEXT + 1)
    x, targets = x[:, :-1], x[:, 1:]
    segments = (torch.arange(x.shape[1]) >= 10).long().expand(2, -1).contiguous()
    got = torch.compile(model, backend=backend, fullgraph=True)(x, targets, segments=segments)
    want = eager(x, targets, segments=segments)
    errors = [gap(got, want)]
    got.sum().backward()
    want.sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        if b.grad is not None:
            errors.append(relative(a.grad, b.grad.double()) if a.grad is not None else torch.inf)
    return Result(max(errors), 1e-4)
