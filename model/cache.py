"""What decoding remembers: keys, values, a clock's readings and positions of every token so far.

Keys are kept as they left the projection, unrotated, so that a scheme may turn them by what it
knows now (RoPE whose frequencies depend on the current length). Growing by concatenation costs what
attention costs anyway: one pass over the keys for a new token.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


def extend(old: Tensor | None, new: Tensor, dim: int) -> Tensor:
    return new if old is None else torch.cat((old, new), dim)


@dataclass
class LayerCache:
    k: Tensor | None = None  # (B, Hkv, T, D)
    v: Tensor | None = None  # (B, Hkv, T, D)
    c: Tensor | None = None  # (B or 1, H or 1, T), only where the scheme has a clock

    @property
    def last(self) -> Tensor | None:
        """The newest reading of the clock."""
        return None if self.c is None else self.c[..., -1:]

    def append(
        self, k: Tensor, v: Tensor, c: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """All keys, values and clock readings, the new ones last."""
        self.k, self.v = extend(self.k, k, 2), extend(self.v, v, 2)
        self.c = None if c is None else extend(self.c, c, 2)
        return self.k, self.v, self.c


@dataclass
class Cache:
    """One for a call sequence of one batch: `cache = Cache.empty(n_layers)`, then pass it to every
    call of the model.
    """

    layers: list[LayerCache]
    pos: Tensor | None = field(default=None)  # (T,) or (B, T)
    consecutive: bool = True  # False: the caller gives the positions

    @classmethod
    def empty(cls, n_layers: int) -> "Cache":
        return cls([LayerCache() for _ in range(n_layers)])

    @property
    def length(self) -> int:
        return 0 if self.pos is None else self.pos.shape[-1]
