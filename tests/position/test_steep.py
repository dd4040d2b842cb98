"""xPos where it fades within a few tokens: a query's factors must be counted from near it, in each document."""

import pytest
import torch

from evaluation.kit import agreement, properties
from evaluation.kit.subjects import by_name, gap


@pytest.mark.parametrize("settings", [(1, 0.4), (1, 1e-6), (3, 0.01), (16, 1e-300), (1, 1e300)])
@pytest.mark.parametrize(
    "check",
    [agreement.formula, agreement.masks, properties.documents_apart],
    ids=lambda check: check.__name__,
)
def test_it_is_the_formula(settings, check):
    scale_base, gamma = settings
    result = check(by_name("xpos", scale_base=scale_base, gamma=gamma))
    assert result.ok, f"error {result.error:.2e}"


def test_a_float16_query_has_factors_that_fit():
    model = by_name("xpos", scale_base=4).build(torch.float32)
    x = torch.arange(61)[None]
    want = model.features(x)
    assert gap(model.half().features(x).float(), want) < 0.05
