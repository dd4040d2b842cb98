"""The conformance kit: is every position scheme what its paper says, and does it behave?

    python -m evaluation.conformance                  # all of configs/position, about a minute
    python -m evaluation.conformance rope alibi       # some of them
    python -m evaluation.conformance --slow           # training graphs and the inductor backend too

prints a line for each scheme and check: the error found and its bound. A check is a function of a
subject (a scheme with its settings, in a tiny model); facts and oracles are functions of nothing.
The tests run the same table, so a new file in configs/position is examined without a line of test
code, and fails until it has a reference formula (evaluation/kit/reference.py).
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from evaluation.kit import agreement, forms, precision, properties
from evaluation.kit.identities import FACTS
from evaluation.kit.oracles import ORACLES
from evaluation.kit.subjects import Result, Subject, subjects


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Subject], Result]
    applies: Callable[[Subject], bool]
    slow: bool = False


@dataclass(frozen=True)
class Row:
    """One line of the table, not yet computed."""

    scheme: str
    check: str
    run: Callable[[], Result]
    slow: bool


def every(s: Subject) -> bool:
    return True


def default(s: Subject) -> bool:
    """The settings as they stand in the file."""
    return s.label == s.option


def weighted(s: Subject) -> bool:
    """As `default`, and all with weights of their own."""
    return default(s) or bool([*s.model().schemes.parameters()])


def cached_otherwise(s: Subject) -> bool:
    """What depends on the keys seen or on the length can go wrong with a cache by itself."""
    model = s.model()
    longest = any(position.varies_at(s.length) for position in model.positions)
    return default(s) or longest or s.softmax_scale == "log"


def stateful(s: Subject) -> bool:
    """As `default`, and all that may hold a table of positions."""
    return default(s) or s.model().max_length is not None


def biased(s: Subject) -> bool:
    return default(s) and s.forms != {"none"}


def clocked(s: Subject) -> bool:
    return default(s) and "clock" in s.forms


def moving(s: Subject) -> bool:
    return default(s) and any(map(precision.moves, s.model().positions))


def unlimited(s: Subject) -> bool:
    return moving(s) and s.model().max_length is None


INDUCTOR = {"rope", "alibi", "t5"}  # one that turns, a clock and a distance

CHECKS = [
    Check("formula", agreement.formula, every),
    Check("formula, free positions", agreement.free_positions, every),
    Check("formula, windows and documents", agreement.masks, every),
    Check("formula, float32", agreement.float32, default),
    Check("formula, bfloat16", agreement.bfloat16, default),
    Check("gradients", agreement.gradients, weighted),
    Check("score form, float32", forms.forms_float32, default),
    Check("score form, bfloat16", forms.forms_bfloat16, default),
    Check("score form, last rows", forms.last_rows, default),
    Check("score form, whole blocks", forms.whole_blocks, default),
    Check("far clock", forms.far_clock, clocked),
    Check("far vectors", precision.far_vectors, moving),
    Check("far scores", precision.far_scores, biased),
    Check("65,536 distinct positions", precision.distinct, unlimited),
    Check("causality", properties.causality, default),
    Check("cache", properties.cache, cached_otherwise),
    Check("cache, beyond the context", properties.cache_beyond, cached_otherwise),
    Check("batch neighbours", properties.neighbours, default),
    Check("call order", properties.call_order, default),
    Check("shift", properties.shift, properties.is_relative),
    Check("swap", properties.swap, every),
    Check("documents", properties.documents_apart, every),
    Check("built on meta", properties.materialised, stateful),
    Check("paired weights", properties.paired_weights, default),
    Check("length limit", properties.limit, stateful),
    Check("compiled", properties.compiled, default),
    Check("compiled training", properties.compiled_training, default, slow=True),
    Check(
        "compiled by inductor",
        partial(properties.compiled_training, backend="inductor"),
        lambda s: s.label in INDUCTOR,
        slow=True,
    ),
]


def rows(examined: list[Subject] | None = None) -> Iterator[Row]:
    """The whole table: each check that applies to a subject, then facts and oracles."""
    examined = subjects() if examined is None else examined
    for s in examined:
        for check in CHECKS:
            if check.applies(s):
                yield Row(s.label, check.name, partial(check.run, s), check.slow)
    options = {s.option for s in examined}
    for scheme, name, run in [*FACTS, *ORACLES]:
        if scheme in options:
            yield Row(scheme, name, run, False)


def line(row: Row) -> tuple[str, bool]:
    """The printed row, and whether it is as it should be."""
    start = f"{row.scheme[:44]:44} {row.check:34}"
    try:
        result = row.run()
    except ModuleNotFoundError as missing:
        if missing.name in ("transformers", "x_transformers"):
            return f"{start} {missing.name} is not installed: not run", True
        return f"{start} {missing}  FAIL", False
    except Exception as error:  # a check that cannot run is a check that fails
        return f"{start} {type(error).__name__}: {error}  FAIL", False
    sign, verdict = (">=" if result.least else "<="), ("ok" if result.ok else "FAIL")
    return f"{start} {result.error:9.2e} {sign} {result.bound:8.1e}  {verdict}", result.ok


def main() -> int:
    parser = argparse.ArgumentParser(description="Examine position schemes.")
    parser.add_argument("schemes", nargs="*", help="files of configs/position; by default all")
    parser.add_argument("--slow", action="store_true", help="the slow checks too")
    given = parser.parse_args()
    torch.set_num_threads(1)  # tiny tensors: two threads only wait for each other
    all_of_them = subjects()
    unknown = set(given.schemes) - {s.option for s in all_of_them}
    if unknown:
        parser.error(f"no configs/position/{sorted(unknown)[0]}.yaml")
    examined = [s for s in all_of_them if not given.schemes or s.option in given.schemes]
    print(f"{'scheme':44} {'check':34} {'error':>9}    {'bound':>8}")
    good = []
    for row in rows(examined):
        if given.slow or not row.slow:
            text, ok = line(row)
            print(text, flush=True)
            good.append(ok)
    print(f"{sum(good)} of {len(good)} as they should be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
