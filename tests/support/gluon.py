"""Gluon for Triton's interpreter, which knows Triton alone.

`install` replaces names of Gluon's modules before a kernel is imported: layouts mean nothing, shared memory is an
array, and everything else is Triton's function of the same name. What is exchanged too early or too late between the
threads of a program cannot be seen this way: it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

_LAYOUTS = (
    "BlockedLayout", "SliceLayout", "SwizzledSharedLayout", "NVMMADistributedLayout", "DotOperandLayout",
)  # fmt: skip


class Memory:
    """A descriptor of shared memory: a view of an array of one element type."""

    def __init__(self, array: Any, element: Any) -> None:
        self.array, self.element = array, element

    def load(self, layout: object) -> Any:
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        return tl.tensor(
            TensorHandle(self.array.copy(), self.element), tl.block_type(self.element, list(self.array.shape))
        )

    def store(self, value: Any) -> None:
        assert value.dtype == self.element
        assert tuple(int(size) for size in value.shape) == self.array.shape
        self.array[...] = value.handle.data

    def index(self, index: Any) -> Memory:
        return Memory(self.array[int(index)], self.element)

    def slice(self, start: Any, length: Any, dim: int = 0) -> Memory:
        assert dim == 0
        return Memory(self.array[int(start) : int(start) + int(length)], self.element)

    def _reinterpret(self, element: Any, shape: Sequence[int], layout: object) -> Memory:
        assert element == self.element
        view = self.array.reshape([int(size) for size in shape])
        assert np.shares_memory(view, self.array)
        return Memory(view, element)


def _allocate(element: Any, shape: Sequence[int], layout: object) -> Memory:
    from triton.runtime import interpreter

    array = np.empty([int(size) for size in shape], interpreter._get_np_dtype(element))
    array.view(np.uint8)[...] = 0xFF  # NaN, as the worst memory may hold
    return Memory(array, element)


def _copy(memory: Memory, pointer: Any, mask: Any = None) -> None:
    import triton.language as tl

    memory.store(tl.load(pointer, mask=mask, other=0.0))


def _jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    import triton
    import triton.language as tl

    def interpreted(kernel: Callable[..., Any]) -> Any:
        # The interpreter looks for it among the names of a kernel.
        kernel.__globals__["tl"] = tl
        return triton.jit(kernel, **options)

    return interpreted if function is None else interpreted(function)


def _product(a: Any, b: Any, total: Any) -> Any:
    import triton.language as tl

    return tl.dot(a, b, total)


class _Language(ModuleType):
    def __getattr__(self, name: str) -> Any:
        import triton.language as tl

        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(tl, name)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*arguments: Any, layout: object = None, **options: Any) -> Any:
            return getattr(tl, name)(*arguments, **options)  # as it is then: the interpreter replaces them

        return call


def install() -> None:
    """Give this process, which interprets kernels, a Gluon of that kind."""
    from triton.experimental import gluon
    from triton.experimental.gluon.language.nvidia import ampere
    from triton.runtime import jit

    language = _Language("interpreted_gluon")
    language.allocate_shared_memory = _allocate  # type: ignore[attr-defined]
    language.shared_memory_descriptor = Memory  # type: ignore[attr-defined]
    language.convert_layout = lambda value, layout, assert_trivial=False: value  # type: ignore[attr-defined]
    for name in _LAYOUTS:
        setattr(language, name, lambda *arguments: None)
    asynchronous = ModuleType("interpreted_async_copy")
    asynchronous.async_load = _copy  # type: ignore[attr-defined]
    asynchronous.commit_group = lambda: None  # type: ignore[attr-defined]
    asynchronous.wait_group = lambda outstanding: None  # type: ignore[attr-defined]
    plain = jit._normalize_ty

    def named(annotation: Any) -> str:
        return plain(annotation.replace("gl.", "tl.") if isinstance(annotation, str) else annotation)  # type: ignore[no-any-return]

    jit._normalize_ty = named
    gluon.jit, gluon.language = _jit, language
    ampere.async_copy, ampere.mma_v2 = asynchronous, _product
