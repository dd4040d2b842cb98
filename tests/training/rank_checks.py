"""What each of several processes checks of their world: torchrun tests/training/rank_checks.py

Gradients are held against one process that takes the whole batch at once, in float64.
"""

import numpy as np
import torch
from torch import Tensor

from data.loader import Loader
from data.prepare import TokenSplit
from evaluation.kit.subjects import Subject, by_name, gap, subjects
from train import shares
from training.distributed import World
from training.precision import Precision
from training.ranks import launched
from training.validation import Validation

ACCUMULATE = 2
ROWS = 12  # of a batch, over all ranks


def numbers(world: World) -> None:
    size = world.size
    assert world.total(0.1, world.rank) == [sum([0.1] * size), sum(range(size))]
    assert [world.any(world.rank == r) for r in range(size)] == [True] * size
    assert not world.any(False)
    assert world.mean(torch.tensor(float(world.rank))).item() == (size - 1) / 2
    array = np.arange(world.rank, dtype=np.int64) + 10 * world.rank  # rank 0 has nothing
    joined = [i + 10 * rank for rank in range(size) for i in range(rank)]
    assert world.gather(array).tolist() == joined and world.gather(array).dtype == array.dtype


def gradients(world: World, subject: Subject, wrap=lambda model: model) -> None:
    """The gradient of the mean over all tokens, whether one process takes them or all ranks in parts."""
    alone, model = (subject.build(tie_embeddings=True) for _ in range(2))
    tokens = subject.tokens(ROWS, T=20)
    alone(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    assert all(p.grad is not None for p in alone.parameters()), "DDP would wait for it"
    together = wrap(world.wrap(model.train()))
    for _ in range(2):  # in the second step, DDP asks whether the first one was complete
        model.zero_grad()
        parts = tokens.chunk(world.size)[world.rank].chunk(ACCUMULATE)
        for i, part in enumerate(parts):
            with world.part(together, last=i == ACCUMULATE - 1):
                loss = together(part[:, :-1], part[:, 1:]).mean() / ACCUMULATE
                loss.backward()
    for p, q in zip(alone.parameters(), model.parameters(), strict=True):
        assert_equal(q.grad, p.grad, subject.label)


def assert_equal(found: Tensor | None, expected: Tensor | None, what: str) -> None:
    assert found is not None and expected is not None
    assert gap(found, expected) < 1e-6, what  # a scheme's own arithmetic is float32


def validation(world: World, windows: int) -> None:
    """As one process, also where there are fewer windows than ranks, and each counted once."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(61, size=windows * 8 + 1).astype(np.uint16)
    split = TokenSplit(tokens, np.array([0, len(tokens)]), ["a"], np.arange(1, 62), "", 0)
    model = by_name("rope").build(torch.float32)

    def measure(world: World) -> dict[str, float]:
        loader = {"context_length": 8, "tokens": 10**6, "document_mask": True}
        device = torch.device("cpu")
        found = Validation(split, **loader, position_range=50, rows=2, device=device, world=world)
        return found.measure(model, Precision("fp32", device))

    alone, together = measure(World()), measure(world)
    assert all(abs(together[key] / alone[key] - 1) < 1e-6 for key in alone), (alone, together)


def borders(world: World) -> None:
    """With unequally many targets in the parts: the mean over all that count, whoever has them."""
    model, offsets = by_name("rope").build(), np.array([0, 2, 4, 6, 8, 11, 40, 80, 161])
    tokens = np.random.default_rng(0).integers(61, size=161).astype(np.uint16)
    split = TokenSplit(tokens, offsets, [""] * 8, np.ones(61, np.int64), "", 0)

    def loss(world: World, accumulate: int) -> float:
        settings = {"context_length": 20, "batch_size": 8, "seed": 1, "document_mask": True}
        batch = Loader(split, **settings, rank=world.rank, world=world.size).batch(0)
        parts = batch.chunk(accumulate)
        losses = [
            model(part.inputs, part.targets, mean=True, segments=part.documents) / share
            for part, share in zip(parts, shares(parts, world), strict=True)
        ]
        return world.mean(sum(losses[1:], losses[0])).item()

    alone = loss(World(), 1)
    for accumulate in (1, 2, 4):
        assert abs(loss(world, accumulate) / alone - 1) < 1e-12


def main() -> None:
    torch.set_num_threads(1)
    world = launched()
    numbers(world)
    for windows in (1, 2, 4, 13):
        validation(world, windows)
    borders(world)
    for subject in subjects(variants=False):
        gradients(world, subject)
    gradients(world, by_name("t5"), lambda model: torch.compile(model, backend="aot_eager"))
    world.close()


if __name__ == "__main__":
    main()
