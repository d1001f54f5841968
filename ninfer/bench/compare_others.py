"""The other side of ``ninfer-bench compare``, in seconds: torch, fla-core and transformers at the 27B's shapes."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from ninfer.artifact.registered import REGISTERED
from ninfer.bench.linear import timed_s

ATTENTION_TOKENS = 16384
CHUNK_TOKENS = 8192
PROMPT_TOKENS = 8192
SHORT_TOKENS = 256  # in the cache when transformers decodes
REPEATS = 11
GROUP_LAYERS = 4  # three recurrent layers and one with attention
RECURRENT_LAYERS = 48
DEVICE = "cuda"
TEXT = REGISTERED["qwen3_8_27b"].components.text


def versions() -> dict[str, str | None]:
    """Versions of what is compared with; None for what is not installed."""
    found: dict[str, str | None] = {}
    for package in ("torch", "triton", "transformers", "fla-core"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


def sdpa_s(backend: str) -> float:
    """Causal attention over a whole prompt by one back end of torch."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    q = _normal(1, TEXT.heads, ATTENTION_TOKENS, TEXT.head_dim)
    k, v = (_normal(1, TEXT.kv_heads, ATTENTION_TOKENS, TEXT.head_dim) for _ in range(2))

    def work() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    with torch.inference_mode(), sdpa_kernel(chosen):
        return timed_s(work, q.device, REPEATS)


def _delta_inputs(lanes: int, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, g, beta as fla-core takes them; keys have length one."""
    keys, values, key, value = TEXT.gdn_key_heads, TEXT.gdn_value_heads, TEXT.gdn_key_dim, TEXT.gdn_value_dim
    q, k = (torch.nn.functional.normalize(_normal(lanes, tokens, keys, key), dim=-1) for _ in range(2))
    v = _normal(lanes, tokens, values, value)
    g = torch.nn.functional.logsigmoid(_normal(lanes, tokens, values, dtype=torch.float32) + 3)
    beta = torch.sigmoid(_normal(lanes, tokens, values))
    return q, k, v, g, beta


def _states(lanes: int, layers: int) -> list[Tensor]:
    shape = (lanes, TEXT.gdn_value_heads, TEXT.gdn_key_dim, TEXT.gdn_value_dim)
    return [_normal(*shape, dtype=torch.float32) for _ in range(layers)]


def fla_chunk_s() -> float:
    """A chunk of one layer, with a state before and after it."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    inputs = _delta_inputs(1, CHUNK_TOKENS)
    (state,) = _states(1, 1)
    with torch.inference_mode():
        return timed_s(
            lambda: chunk_gated_delta_rule(*inputs, initial_state=state, output_final_state=True),
            state.device,
            REPEATS,
        )


def fla_recurrent_s(lanes: int) -> float:
    """One token of each lane in one layer; layers have states of their own, so that no cache serves two."""
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    inputs = _delta_inputs(lanes, 1)
    states = _states(lanes, RECURRENT_LAYERS)

    def work() -> None:
        for state in states:
            fused_recurrent_gated_delta_rule(*inputs, initial_state=state, output_final_state=True)

    with torch.inference_mode():
        return timed_s(work, states[0].device, REPEATS) / len(states)


def _eager_s(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median seconds of calls on the device's clock, without a graph."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        times.append(float(first.elapsed_time(last)) / 1e3)
    return statistics.median(times)


def _four_layers() -> Any:
    """Four layers of the 27B with random weights, without its large embedding and its head."""
    from transformers import Qwen3_5TextConfig, Qwen3_5TextModel

    config = Qwen3_5TextConfig(
        vocab_size=1024,
        hidden_size=TEXT.hidden_size,
        intermediate_size=TEXT.intermediate_size,
        num_hidden_layers=GROUP_LAYERS,
        num_attention_heads=TEXT.heads,
        num_key_value_heads=TEXT.kv_heads,
        head_dim=TEXT.head_dim,
        linear_num_key_heads=TEXT.gdn_key_heads,
        linear_num_value_heads=TEXT.gdn_value_heads,
        linear_key_head_dim=TEXT.gdn_key_dim,
        linear_value_head_dim=TEXT.gdn_value_dim,
        max_position_embeddings=2 * PROMPT_TOKENS,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(DEVICE):
            return Qwen3_5TextModel(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def _head_s() -> float:
    x, weight = _normal(1, TEXT.hidden_size), _normal(TEXT.vocab_size, TEXT.hidden_size)
    return _eager_s(lambda: x @ weight.t())


def _groups() -> int:
    return TEXT.num_layers // GROUP_LAYERS


def transformers_prefill_s() -> float:
    """A prompt through four layers, times 16; the head for one token."""
    with torch.inference_mode():
        model = _four_layers()
        ids = torch.randint(0, 1024, (1, PROMPT_TOKENS), device=DEVICE)
        return _groups() * _eager_s(lambda: model(input_ids=ids, use_cache=True), 5) + _head_s()


def transformers_decode_s() -> float:
    """A token with a cache through four layers, times 16, and the head."""
    with torch.inference_mode():
        model = _four_layers()
        ids = torch.randint(0, 1024, (1, SHORT_TOKENS), device=DEVICE)
        first = model(input_ids=ids, use_cache=True)
        # The argument is called `cache` from transformers 5.20 on or so; the old name warns there.
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        cache = getattr(first, name, None) or first.past_key_values
        token = ids[:, :1]
        step = _eager_s(lambda: model(input_ids=token, use_cache=True, **{name: cache}))
        return _groups() * step + _head_s()
