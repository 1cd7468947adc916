"""Launches of Triton's kernels without the search for their compiled form."""

from __future__ import annotations

from itertools import compress
from typing import Any

from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Launcher:
    """Launches a kernel of ``triton.jit`` as ``kernel[grid](*arguments, **constants)``, but sooner.

    At every launch Triton binds the arguments, finds out what their values let it assume, and looks
    the compiled kernel up by the text of that. Here it is looked up by what it depends on: device,
    constants, types, whether addresses are multiples of 16 bytes, and values of integers. Those
    that change often should be in the kernel's ``do_not_specialize``: they do not count, and have
    to be of 31 bits. In the interpreter this is a plain launch.

    Args:
        kernel: its constants follow all of its arguments. It may be decorated with ``@Launcher``
            above ``@triton.jit``, and is then called as ``kernel(grid, *arguments, **constants)``.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.compiles = isinstance(kernel, JITFunction)
        self._counts = [not p.do_not_specialize for p in kernel.params] if self.compiles else []
        self._found: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}

    def __call__(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Launch programs on tensors, integers, and floats.

        Args:
            grid: how many, along one to three axes.
            arguments: all that are no constants, by their places.
            constants: all of them by name, and the compiler's options.
        """
        if not self.compiles:
            self.kernel[grid](*arguments, **constants)
            return
        kinds = [
            value
            if type(value) is int
            else float
            if type(value) is float
            else (value.dtype, value.data_ptr() % 16)
            for value in compress(arguments, self._counts)
        ]
        key = (driver.active.get_current_device(), *kinds, *constants.items())
        if (found := self._found.get(key)) is None:
            compiled = self.kernel[grid](*arguments, **constants)
            rest = [constants[name] for name in self.kernel.arg_names[len(arguments) :]]
            self._found[key] = compiled, rest
        else:
            compiled, rest = found
            compiled[(*grid, 1, 1)](*arguments, *rest)
