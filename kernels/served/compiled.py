"""Whether Triton compiles anything that the warm-up of an engine has not run."""

from __future__ import annotations

from typing import Any

import triton


def note_compilations() -> list[str]:
    """From now on, names of Triton kernels of this process that a launch compiles, or loads for the first time.

    returns  a list that grows; one list per call, and the last call's is the one that does
    """
    names: list[str] = []

    def note(*, fn: Any, **_rest: Any) -> None:
        names.append(str(fn.name))

    triton.knobs.runtime.jit_post_compile_hook = note
    return names
