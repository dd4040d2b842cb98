"""The model around the schemes: losses, caches, windows, documents, initialisation. The schemes have tests/position."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import model.transformer
from errors import UserError
from model.attention import restarted
from model.cache import Cache
from model.config import ModelConfig
from model.transformer import Transformer

SHAPE = ModelConfig(
    vocab_size=61, context_length=64, d_model=48, n_layers=2, n_heads=6, n_kv_heads=2, d_ff=80,
    norm_eps=1e-5, tie_embeddings=False, softmax_scale=None,
)  # fmt: skip
LEARNED = {"name": "learned", "rows": None, "extend": None, "factor": 8, "seed": 0}


def build(position: dict | None = None, **changes) -> Transformer:
    net = Transformer(dataclasses.replace(SHAPE, **changes), position or {"name": "none"})
    net.reset(0)
    return net.double().eval()


@pytest.fixture
def tokens():
    return torch.randint(61, (3, 50), generator=torch.Generator().manual_seed(0))


def dense(net: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """The whole model again, without positions, in the plainest words: logits (B, T, V)."""

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + net.config.norm_eps).sqrt() * weight

    x = net.embed.weight[tokens]
    H, G, D = net.config.n_heads, net.config.n_heads // net.config.n_kv_heads, net.config.d_head
    for block in net.blocks:
        h = norm(x, block.attn_norm.weight)
        q, k, v = (h @ w.weight.T for w in (block.attn.wq, block.attn.wk, block.attn.wv))
        heads = []
        for head in range(H):
            mine, shared = (
                slice(head * D, (head + 1) * D),
                slice(head // G * D, (head // G + 1) * D),
            )
            scores = q[..., mine] @ k[..., shared].transpose(1, 2) * net.config.scale
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            heads.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[..., shared])
        x = x + torch.cat(heads, -1) @ block.attn.wo.weight.T
        h = norm(x, block.ffn_norm.weight)
        gate = h @ block.ffn.w1.weight.T
        x = x + (gate * gate.sigmoid() * (h @ block.ffn.w3.weight.T)) @ block.ffn.w2.weight.T
    return norm(x, net.norm.weight) @ net.head.weight.T


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_is_the_plain_formula(tokens, kv_heads, scale):
    net = build(n_kv_heads=kv_heads, softmax_scale=scale)
    torch.testing.assert_close(net(tokens), dense(net, tokens).float(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("scored", [1, 17, 50])
def test_nats_are_the_cross_entropy_of_the_last_positions(tokens, scored, monkeypatch):
    net, targets = build(), tokens.roll(-1, 1)[:, -scored:]
    logits = net(tokens)[:, -scored:]
    expected = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    monkeypatch.setattr(model.transformer, "LOGIT_ELEMENTS", 61 * 7)  # seven rows at a time
    torch.testing.assert_close(net(tokens, targets), expected)


def test_logits_are_computed_where_they_are_scored(tokens):
    net, rows = build(), []
    net.head.register_forward_hook(lambda _m, inputs, _o: rows.append(inputs[0].shape[0]))
    net(tokens, tokens[:, :5])
    assert sum(rows) == 3 * 5


@pytest.mark.parametrize("cuts", [[1], [49], [7, 8, 30], list(range(1, 50))])
@pytest.mark.parametrize("window", [None, 9])
def test_cached_is_full(tokens, cuts, window):
    net, cache = build(), Cache.empty(2)
    parts = [
        net(tokens[:, a:b], cache=cache, window=window)
        for a, b in zip([0, *cuts], [*cuts, 50], strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), net(tokens, window=window))


def test_window_is_how_far_a_token_sees(tokens):
    """Two layers with a window of 5 see 9 tokens; one token more changes nothing."""
    net = build()
    before = net(tokens, window=5)[:, -1]
    changed = tokens.clone()
    changed[:, -10] = (changed[:, -10] + 1) % 61
    torch.testing.assert_close(net(changed, window=5)[:, -1], before, atol=0, rtol=0)
    changed[:, -9] = (changed[:, -9] + 1) % 61
    assert (net(changed, window=5)[:, -1] - before).abs().max() > 1e-6
    torch.testing.assert_close(net(tokens, window=50), net(tokens))


def test_documents_do_not_see_each_other(tokens):
    net = build({"name": "sinusoidal", "base": 10000.0})
    segments = (torch.arange(50) >= 20).long().expand(3, 50)
    together = net(tokens, segments=segments)
    other = tokens.clone()
    other[:, :20] = (other[:, :20] + 7) % 61
    assert torch.equal(net(other, segments=segments)[:, 20:], together[:, 20:])
    torch.testing.assert_close(together[:, 20:], net(tokens[:, 20:]), atol=1e-5, rtol=0)
    torch.testing.assert_close(together[:, :20], net(tokens[:, :20]), atol=1e-5, rtol=0)


def test_restarted_positions():
    segments = torch.tensor([[0, 0, 0, 1, 1, 2], [4, 5, 5, 5, 5, 5]])
    expected = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]])
    assert torch.equal(restarted(torch.arange(6), segments), expected)


def test_initial_weights(tokens):
    net = build(d_model=240, n_layers=8, tie_embeddings=True)
    assert net.head.weight is net.embed.weight
    for name, parameter in net.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == 1).all()
        else:
            std = 0.02 / 4 if name.endswith(("wo.weight", "w2.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(std, rel=0.05)
    loss = net(tokens, tokens.roll(-1, 1)).mean().item()
    assert loss == pytest.approx(torch.tensor(61.0).log().item(), abs=0.2)


def test_a_scheme_that_ends_says_so_before_any_work():
    net = build(LEARNED)
    assert net.max_length == 64
    with pytest.raises(UserError, match=r"64.*65"):
        net(torch.zeros(1, 65, dtype=torch.long))
    with pytest.raises(UserError, match=r"64.*71"):
        net(torch.zeros(1, 2, dtype=torch.long), pos=torch.tensor([3, 70]))
    cache = Cache.empty(2)
    net(torch.zeros(1, 64, dtype=torch.long), cache=cache)
    with pytest.raises(UserError, match="65"):
        net(torch.zeros(1, 1, dtype=torch.long), cache=cache)


def test_a_cache_keeps_to_one_way_of_counting(tokens):
    for first, then in (({}, {"pos": torch.tensor([5])}), ({"pos": torch.tensor([3])}, {})):
        net, cache = build(), Cache.empty(2)
        net(tokens[:, :1], cache=cache, **first)
        with pytest.raises(ValueError, match="in every call, or in none"):
            net(tokens[:, 1:2], cache=cache, **then)
    with pytest.raises(ValueError, match="no segments"):
        net(tokens, cache=Cache.empty(2), segments=torch.zeros_like(tokens))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_heads": 5}, "model.n_heads=5"),
        ({"n_kv_heads": 4}, "model.n_kv_heads=4"),
        ({"d_ff": 0}, "model.d_ff=0"),
        ({"norm_eps": 0.0}, "model.norm_eps"),
        ({"softmax_scale": -1.0}, "model.softmax_scale"),
        ({"context_length": 0}, "context_length=0"),
    ],
)
def test_impossible_shapes_name_their_key(change, message):
    with pytest.raises(UserError, match=message):
        build(**change)
