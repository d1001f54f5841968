"""Names of Gluon that Triton's releases disagree about."""

# mypy: ignore-errors
from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# 3.6 and 3.7 copy under the second name.
load_to_shared = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
# 3.9 has made this method public, under a new name.
if not hasattr(gl.shared_memory_descriptor, "_reinterpret"):
    gl.shared_memory_descriptor._reinterpret = gl.shared_memory_descriptor.reinterpret
