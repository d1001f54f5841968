"""The training network against the modelling library and against the formulas of the model spec."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from ninfer.embedded.training.delta_rule import RESET, chunk_gradients, chunked, recurrent
from ninfer.embedded.training.dimensions import Dimensions
from ninfer.embedded.training.network import Network, Routes, offset_norm
from ninfer.embedded.training.packed_attention import Documents, masked

TINY = Dimensions(
    vocabulary=96, hidden=64, layers=4, intermediate=64, heads=2, kv_heads=1, head_dim=64, key_heads=1, value_heads=2,
    gdn_dim=64,
)  # fmt: skip
ROUTES = Routes(chunked, masked)


def network(seed: int = 0) -> Network:
    """Every parameter away from its start, so that offsets and zeros hide nothing."""
    torch.manual_seed(seed)
    net = Network(TINY)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return net.eval()


def packed(lengths: list[list[int]]) -> Documents:
    rows = [torch.cat([torch.arange(n) for n in row]) for row in lengths]
    return Documents.at(len(rows), torch.cat(rows))


def test_logits_equal_those_of_the_modelling_library():
    net = network()
    config = {k: v for k, v in TINY.config().items() if k not in ("architectures", "dtype")}
    oracle = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config, attn_implementation="eager")).eval()
    state = {name: tensor for name, tensor in net.state_dict().items() if not name.startswith("mtp.")}
    missing, unexpected = oracle.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] or not missing
    assert not unexpected
    oracle.tie_weights()
    ids = torch.randint(0, 96, (2, 128))
    documents = packed([[128], [128]])
    with torch.no_grad():
        h, _ = net(ids.flatten(), documents, ROUTES, torch.float32)
        logits = (h @ net.head().T).view(2, 128, -1)
        expected = oracle(ids).logits
    assert (logits - expected).abs().max() < 2e-4


def test_documents_of_a_row_do_not_see_each_other():
    net = network(1)
    ids = torch.randint(0, 96, (128,))
    with torch.no_grad():
        h, m = net(ids, packed([[50, 3, 75]]), ROUTES, torch.float32)
        alone, drafts = net(torch.cat([ids[53:], ids[:53]]), packed([[75, 53]]), ROUTES, torch.float32)
    assert (h[53:] - alone[:75]).abs().max() < 1e-4
    assert (m[53:-1] - drafts[:74]).abs().max() < 1e-4


def test_drafts_follow_the_formula():
    net = network(2)
    ids = torch.randint(0, 96, (64,))
    documents = packed([[64]])
    mtp, eps = net.mtp, TINY.eps
    with torch.no_grad():
        h, m = net(ids, documents, ROUTES, torch.float32)
        table = net.model.embed_tokens.weight
        e = offset_norm(table[ids[1:]], mtp.pre_fc_norm_embedding.weight, eps)
        u = torch.cat([e, offset_norm(h[:-1], mtp.pre_fc_norm_hidden.weight, eps)], -1) @ mtp.fc.weight.T
        # One column more keeps the row a multiple of the chunk; causal attention does not see it.
        u = mtp.layers[0](torch.cat([u, u[:1]]), documents, ROUTES)[:-1]
        expected = offset_norm(u, mtp.norm.weight, eps)
    assert (m[:-1] - expected).abs().max() < 1e-5


def test_the_chunked_rule_is_the_rule_with_resets():
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, 192, 3, 16, dtype=torch.float64) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    g = -torch.rand(2, 192, 3, dtype=torch.float64)
    g[:, [0, 5, 70, 71]] = RESET
    beta = torch.rand(2, 192, 3, dtype=torch.float64)
    expected = recurrent(q, k, v, g, beta)
    got = chunked(q, k, v, g, beta)
    assert (got - expected).abs().max() < 1e-4
    fresh = recurrent(q[:, 71:], k[:, 71:], v[:, 71:], g[:, 71:], beta[:, 71:])
    assert (expected[:, 71:] - fresh).abs().max() < 1e-9


def test_config_is_one_that_conversion_accepts(tmp_path: Path):
    text = json.loads(Dimensions().config_json())
    assert sum(text["rope_parameters"]["mrope_section"]) == 32
    assert text["layer_types"].count("full_attention") == 2
    count = sum(parameter.numel() for parameter in Network(Dimensions()).parameters())
    assert 25e6 < count < 30e6


@pytest.mark.parametrize("amount", [0.0, 1.0])
def test_rounding_is_the_quantiser_of_the_artifact(amount: float):
    from ninfer.artifact.formats import find_format
    from ninfer.artifact.quantise import decode, encode
    from ninfer.embedded.training.rounding import Q4, Q5, Q8, rounded

    torch.manual_seed(4)
    weight = torch.randn(64, 256) * torch.rand(64, 1)
    weight[3] = 0
    weight[4] = 1e-9
    for (qmax, group), name in ((Q4, "q4_g64_fp16"), (Q5, "q5_g64_fp16"), (Q8, "q8_g32_fp16")):
        stored = decode(encode(weight.numpy(), name), name, find_format(name).layout, (64, 256))
        got = rounded(weight, torch.full((64, 1), float(qmax)), group, torch.tensor(amount))
        expected: Tensor = torch.from_numpy(stored) if amount else weight
        assert torch.allclose(got, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("strength", [0.5, 0.9, 1.0])
def test_the_chunked_rule_survives_keys_that_repeat(strength: float) -> None:
    """A run of one token writes at one place again and again; products of powers blow up there by 1e18."""
    torch.manual_seed(3)
    k = torch.nn.functional.normalize(torch.randn(1, 1, 2, 16), dim=-1).expand(1, 128, 2, 16).contiguous()
    q, v = k * 0.25, torch.randn(1, 128, 2, 16)
    g, beta = torch.full((1, 128, 2), -0.001), torch.full((1, 128, 2), strength)
    expected = recurrent(*(x.double() for x in (q, k, v, g, beta)))
    got = chunked(q, k, v, g, beta)
    assert (got - expected).norm() / expected.norm() < 1e-5


def test_the_chunk_local_gradients_are_those_of_the_chunk() -> None:
    torch.manual_seed(4)
    rows, chunks, heads, wide = 2, 3, 2, 16
    tokens = 64 * chunks
    q, k, w, v, do, dv = (torch.randn(rows, tokens, heads, wide).double() for _ in range(6))
    h, dh = (torch.randn(rows, chunks, heads, wide, wide).double() for _ in range(2))
    decay = -torch.rand(rows, chunks, 64, heads).double().mul(0.2).cumsum(2).view(rows, tokens, heads)
    scale = 0.25
    for x in (q, k, decay):
        x.requires_grad_()

    def local(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (chunks, 64)).transpose(2, 3)

    g = local(decay).unsqueeze(-1)
    gamma = (g - g.transpose(-1, -2)).tril().exp().tril()
    out = scale * (g.exp() * (local(q) @ h) + (local(q) @ local(k).transpose(-1, -2) * gamma) @ local(v))
    last = g[..., -1:, :]
    end = last.exp() * h + ((last - g).exp() * local(k)).transpose(-1, -2) @ local(v)
    ((out * local(do)).sum() + (end * dh).sum()).backward()

    log2 = decay.detach() / math.log(2)
    dq, dk, dw, dg = chunk_gradients(q.detach(), k.detach(), v, do, h, dh, w=w, g=log2, dv=dv, scale=scale)
    written = -(local(dv) @ h.transpose(-1, -2)).transpose(2, 3).reshape(dw.shape)
    for ours, theirs in ((dq, q.grad), (dk, k.grad), (dg, decay.grad), (dw, written)):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
