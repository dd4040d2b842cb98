"""xPos' spans: a query's factors are counted from near it, in its document, where pairs fade soon and in long texts."""

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


@pytest.mark.parametrize("documents", [False, True])
def test_a_text_longer_than_a_span_does_not_depend_on_where_it_is_cut(documents):
    """At the file's settings; one span in many is compared with formulas above."""
    model = by_name("xpos").build(torch.float32, n_layers=1, n_heads=2, n_kv_heads=1, d_model=32)
    (position,) = model.schemes
    T = position.span + 300
    x = torch.randint(61, (1, T), generator=torch.Generator().manual_seed(0))
    segments = (torch.arange(T)[None] >= 3000).long() if documents else None
    with torch.inference_mode():
        whole = model.features(x, segments=segments)
        for span in (1000, T):
            position.span = span
            assert gap(model.features(x, segments=segments), whole) < 2e-5
        start = 3000 if documents else 0
        assert gap(model.features(x[:, start : start + 700]), whole[:, start : start + 700]) < 2e-5
