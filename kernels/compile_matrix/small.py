"""The binaries of kernels with one form or two: embedding, norms and activations of a chunk, positions, drawing."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.kernels.compile_matrix.variant import Variant
from ninfer.kernels.embedding import triton_gather
from ninfer.kernels.low_bit_linear.buffers import WIDTHS
from ninfer.kernels.low_bit_linear.triton_head import merge_keys
from ninfer.kernels.rmsnorm import triton_added, triton_joined
from ninfer.kernels.rotary.triton_columns import rotary_token
from ninfer.kernels.sampler import triton_draw
from ninfer.kernels.sampler.lanes import BLOCK, KEEP, LAW_FIELDS, MAX_COLUMNS, MAX_STOP_IDS, MERGED
from ninfer.kernels.silu_mul import triton_into

GROUPS = {4: 64, 5: 64, 6: 64, 8: 32, 16: 1}


def matrix() -> Iterator[Variant]:
    """All variants; they are the same on every chip."""
    yield from _embedding()
    yield from _rows()
    yield from _drawing()


def _embedding() -> Iterator[Variant]:
    for bits, group in GROUPS.items():
        for through in (False, True):
            planes = {"base": "bf16", "high": "bf16", "scales": "bf16"} if bits == 16 else {
                "base": "u8", "high": "u8", "scales": "fp16"
            }  # fmt: skip
            yield Variant(
                f"embedding, {bits} bits{', through lanes' if through else ''}",
                triton_gather.gather_row,
                {"ids": "i32", "through": "i32", "out": "bf16"} | planes,
                {"THROUGH": through, "BITS": bits, "GROUP": group, "SIZE": triton_gather.BLOCK},
                warps=triton_gather.WARPS,
                dependent=False,
            )


def _rows() -> Iterator[Variant]:
    for size in (2048, 8192):
        for adds in (False, True):
            yield Variant(
                f"norm of {size}{', added' if adds else ''}",
                triton_added.add_norm_row,
                {"residual": "bf16", "y": "bf16", "weight": "fp32", "out": "bf16"},
                {"SIZE": size, "ADDS": adds},
                warps=triton_added.WARPS,
                dependent=False,
                floats=frozenset({"eps"}),
            )
        for width in (0, *WIDTHS):
            yield Variant(
                f"joined norms of {size}, {f'{width} columns' if width else 'rows'}",
                triton_joined.joined_norm_row,
                {"left": "bf16", "right": "bf16", "left_weight": "fp32", "right_weight": "fp32", "out": "bf16"},
                {"SIZE": size, "WIDTH": width},
                warps=triton_joined.WARPS,
                dependent=False,
                floats=frozenset({"eps"}),
            )
    yield Variant(
        "silu * up",
        triton_into.silu_mul_piece,
        {"gate_up": "bf16", "out": "bf16"},
        {"SIZE": triton_into.BLOCK},
        warps=triton_into.WARPS,
        dependent=False,
    )
    pointers = {"first": "i32", "frequencies": "fp32", "cos": "fp32", "sin": "fp32"}
    # Reducing an angle of any size takes an array of a few words.
    yield Variant("rotary angles", rotary_token, pointers, {"HALF": 32}, warps=1, dependent=False, stack_bytes=32)


def _drawing() -> Iterator[Variant]:
    warps = triton_draw.WARPS
    sizes: dict[str, object] = {"SIZE": BLOCK, "KEPT": KEEP}
    yield Variant(
        "candidates",
        triton_draw.choose_candidates,
        {
            "logits": "fp32",
            "lanes": "i32",
            "ids": "i32",
            "laws": "fp32",
            "counts": "i32",
            "masks": "i32",
            "keys": "i64",
            "faults": "i32",
        },
        sizes | {"LAW": LAW_FIELDS},
        warps=warps,
        dependent=False,
    )
    yield Variant(
        "merged candidates",
        merge_keys,
        {"keys": "i64", "merged": "i64"},
        {"PADDED": MERGED, "KEEP": KEEP, "DEPENDENT": False},
        warps=warps,
        dependent=False,
    )
    for commits in (True, False):
        yield Variant(
            f"draw{'' if commits else ', of guesses'}",
            triton_draw.draw_token,
            {
                "keys": "i64", "lanes": "i32", "laws": "fp32", "uniforms": "fp32", "stops": "i32", "counts": "i32",
                "anchors": "i32", "faults": "i32", "results": "i32",
            },
            {
                "BLOCKS": 256, "LAW": LAW_FIELDS, "STOPS": MAX_STOP_IDS, "SIZE": MERGED, "KEPT": KEEP,
                "COMMITS": commits,
            },
            warps=warps,
            dependent=False,
        )  # fmt: skip
    yield Variant(
        "accept",
        triton_draw.accept_columns,
        dict.fromkeys(("drawn", "lanes", "ids", "live", "halts", "counts", "anchors", "results"), "i32"),
        {"L": MAX_COLUMNS},
        warps=1,
        dependent=False,
    )
