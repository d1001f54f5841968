"""Tries the GPU routes of the two sequence operations against the plain ones and times them; a minute at most.

    python -m ninfer.embedded.training.check --choice FILE

FILE receives `--delta-rule ... --attention ...` for `train`: the fast routes where they are right, else the plain ones.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ninfer.embedded.training.delta_rule import RESET, chunked, fla_kernels
from ninfer.embedded.training.packed_attention import Documents, masked, variable_length

# Largest relative error of bf16 kernels against float32, results and gradients.
TOLERANCE = 0.05


def relative_errors(
    route: Callable[..., Tensor], oracle: Callable[..., Tensor], inputs: list[Tensor], wide: list[Tensor]
) -> list[float]:
    """|route - oracle| / |oracle| of the result and of the gradient of each input."""
    results = []
    for function, arguments in ((route, inputs), (oracle, wide)):
        leaves = [x.detach().clone().requires_grad_() for x in arguments]
        out = function(*leaves)
        torch.manual_seed(1)
        torch.autograd.backward(out, torch.randn(out.shape, device=out.device).to(out.dtype))
        results.append([out.detach(), *(x.grad for x in leaves)])
    return [float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(*results, strict=True)]


def timed(function: Callable[..., Tensor], inputs: list[Tensor]) -> float:
    """Milliseconds of a forward and a backward pass, the median of five."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        torch.autograd.backward(function(*leaves).float().sum())
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin))
    return sorted(times[2:])[2]


def delta_inputs(rows: int, tokens: int) -> list[Tensor]:
    """q, k, v, g, beta of 4 heads of 128, bf16 and fp32, with documents that begin in the middle."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(rows, tokens, 4, 128, device="cuda") for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q * 1.0, k))
    g = -torch.rand(rows, tokens, 4, device="cuda") * 0.3
    g[:, [0, 100, 101, 130, 400]] = RESET
    return [(q * 128**-0.5).bfloat16(), k.bfloat16(), v.bfloat16(), g, torch.rand(rows, tokens, 4, device="cuda")]


def attention_inputs(tokens: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(tokens, heads, 256, device="cuda").bfloat16() for heads in (4, 1, 1)]


def check_delta_rule() -> bool:
    inputs = delta_inputs(2, 1024)
    errors = relative_errors(fla_kernels, chunked, inputs, [x.float() for x in inputs])
    print("delta rule: errors of o, dq, dk, dv, dg, dbeta", [f"{e:.4f}" for e in errors])
    for rows, tokens in ((64, 2048), (16, 8192), (8, 16384)):
        large = delta_inputs(rows, tokens)
        print(f"  {rows} x {tokens}: fla {timed(fla_kernels, large):.1f} ms, torch {timed(chunked, large):.1f} ms")
    return max(errors) < TOLERANCE


def check_attention() -> bool:
    def documents(rows: int, lengths: list[int]) -> Documents:
        positions = torch.cat([torch.arange(n) for n in lengths * rows])
        return Documents.at(rows, positions, torch.device("cuda"))

    inputs = attention_inputs(2048)
    packed = documents(2, [100, 1, 600, 323])
    errors = relative_errors(
        lambda q, k, v: variable_length(q, k, v, packed),
        lambda q, k, v: masked(q, k, v, packed),
        inputs,
        [x.float() for x in inputs],
    )
    print("attention: errors of o, dq, dk, dv", [f"{e:.4f}" for e in errors])
    large = attention_inputs(131072)
    for rows, lengths in ((64, [200] * 10 + [48]), (16, [8192]), (8, [16384])):
        packed = documents(rows, lengths)
        milliseconds = timed(lambda q, k, v, packed=packed: variable_length(q, k, v, packed), large)
        print(f"  {rows} rows of {sum(lengths)}, documents of {lengths[0]}: varlen {milliseconds:.1f} ms")
    return max(errors) < TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choice", type=Path, required=True)
    args = parser.parse_args()
    chosen = []
    for option, check, fast, plain in (
        ("--delta-rule", check_delta_rule, "fla", "torch"),
        ("--attention", check_attention, "varlen", "masked"),
    ):
        try:
            right = check()
        except Exception:  # whatever a foreign kernel raises here, the plain route is the answer
            traceback.print_exc()
            right = False
        chosen += [option, fast if right else plain]
    args.choice.write_text(" ".join(chosen))
    print("chosen:", *chosen)


if __name__ == "__main__":
    main()
