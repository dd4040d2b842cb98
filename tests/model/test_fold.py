"""A folded clock is as exact as the scores that it stands for, at lengths where careless arithmetic is not."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu_attention import chosen, inputs, our_attention, position_of, reference

LENGTH, WIDTH = 8192, 64


@pytest.mark.parametrize("grad", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("heads", [4, 8, 12])  # 12: slopes that are no powers of two
@pytest.mark.parametrize("name", ["alibi", "fox"])
def test_float32_is_within_2e_6_of_float64_at_8192_tokens(name, heads, grad):
    position, rows = position_of(name, heads, WIDTH, "cpu"), chosen(LENGTH, "cpu")
    made = inputs(heads, WIDTH, LENGTH, torch.float32, "cpu")
    with torch.set_grad_enabled(grad):
        out = our_attention(position, *made)[:, :, rows].detach()
        assert (out.double() - reference(position, *made, rows)).abs().max() <= 2e-6


@pytest.mark.parametrize("heads", [4, 8, 12])
@torch.no_grad()
def test_bfloat16_is_no_worse_than_a_mask(heads):
    """Of the same rounded queries, keys and values, with the mask rounded as a kernel wants it."""
    position, rows = position_of("alibi", heads, WIDTH, "cpu"), chosen(LENGTH, "cpu")
    q, k, v, x = inputs(heads, WIDTH, LENGTH, torch.bfloat16, "cpu")
    exact = reference(position, q, k, v, x, rows)
    distance = rows[:, None] - torch.arange(LENGTH)
    slopes = torch.tensor(position.slopes)[:, None, None]
    mask = (-slopes * distance).masked_fill(distance < 0, -torch.inf).bfloat16()
    masked = F.scaled_dot_product_attention(q[:, :, rows], k, v, attn_mask=mask[None])
    folded = our_attention(position, q, k, v, x)[:, :, rows]
    ours, theirs = ((y.double() - exact).abs().mean() for y in (folded, masked))
    assert ours <= 1.1 * theirs
