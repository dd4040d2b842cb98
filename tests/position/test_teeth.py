"""Every mistake in broken.py is caught by the checks that are named there."""

import pytest
from broken import CASES

from evaluation.conformance import CHECKS, Row, rows
from evaluation.kit.subjects import by_name


def caught(row: Row, error: type[Exception] | None) -> bool:
    try:
        return not row.run().ok
    except Exception as raised:
        if error is None or not isinstance(raised, error):
            raise
        return True


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.option}: {c.name}")
def test_is_caught(case, monkeypatch):
    case.apply(monkeypatch)
    found = {row.check: row for row in rows([by_name(case.option, **case.of)])}
    missed = [name for name in case.caught_by if not caught(found[name], case.error)]
    assert not missed, f"not noticed by {missed}"


def test_every_check_of_the_table_has_caught_something():
    proven = {name for case in CASES for name in case.caught_by}
    assert {check.name for check in CHECKS if not check.slow} <= proven
