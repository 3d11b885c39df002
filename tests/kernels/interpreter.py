"""Kernels run by Triton's interpreter, on CPU tensors, in this process.

Triton decides where a function is decorated whether it will be interpreted, its own library's functions
included, and another test has imported that library by now.  So `interpreted` exchanges the library's
compiled functions for interpreted ones, imports the kernels anew, and puts everything back: what Triton 3.9 leaves of
the interpreter in its language too, wherever an interpreted function calls another, or nothing compiles afterwards.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest


@contextmanager
def _as_it_was(*things: Any) -> Iterator[None]:
    """Modules and classes have the same attributes afterwards."""
    before = [dict(vars(thing)) for thing in things]
    try:
        yield
    finally:
        for thing, attributes in zip(things, before, strict=True):
            for name in vars(thing).keys() - attributes.keys():
                delattr(thing, name)
            for name, value in attributes.items():
                if vars(thing).get(name) is not value:
                    setattr(thing, name, value)


@contextmanager
def interpreted(*names: str) -> Iterator[list[ModuleType]]:
    """Modules of kernels, imported anew to be interpreted; a plain import meets them too while this is open.

    Args:
        names: full names; other modules of `attnbench.kernels` that these import are imported anew as well.
    """
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    import attnbench.kernels as room

    with _as_it_was(tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base), \
            pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for library in (tl, tl.standard, tl.random):
            for name, value in list(vars(library).items()):
                if isinstance(value, JITFunction):
                    patch.setattr(library, name, InterpretedFunction(value.fn))
        for name in [name for name in sys.modules if name.startswith(room.__name__ + ".")]:
            patch.delitem(sys.modules, name)
        for name, value in list(vars(room).items()):
            if isinstance(value, ModuleType):
                patch.delattr(room, name)
        try:
            yield [importlib.import_module(name) for name in names]
        finally:
            # What was imported here is interpreted; put back is only what was there before.
            for name in [name for name in sys.modules if name.startswith(room.__name__ + ".")]:
                del sys.modules[name]
            for name, value in list(vars(room).items()):
                if isinstance(value, ModuleType):
                    delattr(room, name)
