"""Kernels run by Triton's interpreter, on CPU tensors, in this process.

Triton decides when a function is decorated whether it will be interpreted, including its own library's functions, which
another test may have imported already.  So `interpreted` replaces the library's compiled functions by interpreted ones,
imports the kernels anew, and restores everything afterwards.

Triton replaces its whole language by the interpreter's at every launch and at every call of one function by another, which
takes a quarter of a test's time, and does not undo all of it, after which nothing compiles.  Here it is done once.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@contextmanager
def _as_it_was(*things: Any) -> Iterator[None]:
    """Restore the attributes of modules and classes afterwards."""
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
def _in_the_interpreters_language() -> Iterator[None]:
    """From the first launch to the end of this block, keep the interpreter's language in place."""
    import triton.language as tl
    from triton.runtime import interpreter

    exchange, done = interpreter._patch_lang, []

    def once(fn: Any) -> Any:
        if not done:
            done.append(exchange(SimpleNamespace(__globals__={"tl": tl, "core": tl.core})))
        return interpreter._LangPatchScope()

    with (
        _as_it_was(tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(interpreter, "_patch_lang", once)
        try:
            yield
        finally:
            for scope in done:
                scope.restore()


def _rounded(convert: Any) -> Any:
    """The interpreter's conversion of numbers, but to e4m3 as a card does it, rounded and saturated; its own truncates."""
    import torch
    import triton.language as tl

    def converted(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if target != tl.float8e4nv or source != tl.float32:
            return convert(values, source, target, mode)
        exact = torch.from_numpy(values.copy()).view(torch.float32).clamp(-448, 448)
        return exact.to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    return converted


def _known(numpy_type: Any) -> Any:
    """The interpreter's NumPy type of a type, whose table of all types it builds for each operation."""
    known: dict[str, Any] = {}

    def found(of: Any) -> Any:
        scalar = of.scalar
        if scalar.name not in known:
            known[scalar.name] = numpy_type(scalar)
        return known[scalar.name]

    return found


def _made_before(make: Any) -> Any:
    """The constructor of a tile's type, which checks shapes for each operation: types are cached and copied."""
    made: dict[Any, dict[str, Any]] = {}

    def copied(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, *shape
        if not all(type(extent) is int for extent in shape):
            make(self, element_ty, shape)
        elif key in made:
            vars(self).update(made[key], element_ty=element_ty)
        else:
            make(self, element_ty, shape)
            made[key] = dict(vars(self))

    return copied


def _of_a_shape_before(make: Any) -> Any:
    """The constructor of a tile, which wraps each extent for each operation."""
    known: dict[tuple[int, ...], dict[str, Any]] = {}

    def copied(self: Any, handle: Any, of: Any) -> None:
        shape = tuple(of.shape) if of.is_block() else ()
        if shape in known:
            vars(self).update(known[shape], handle=handle, type=of, dtype=of.scalar)
        else:
            make(self, handle, of)
            known[shape] = {name: value for name, value in vars(self).items() if name in ("shape", "numel")}

    return copied


@contextmanager
def interpreted(*names: str) -> Iterator[list[ModuleType]]:
    """Modules of kernels, imported anew to be interpreted; a plain import also gets them while this is open.

    Args:
        names: full names; other modules of `attnbench.kernels` that these import are imported anew as well.
    """
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    import attnbench.kernels as room

    with _in_the_interpreters_language(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(interpreter, "_convert_float", _rounded(interpreter._convert_float))
        patch.setattr(interpreter, "_get_np_dtype", _known(interpreter._get_np_dtype))
        # It computes whether integers overflow and, when not debugging, discards the result.
        builder = interpreter.interpreter_builder
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=builder.options.debug))
        patch.setattr(tl.block_type, "__init__", _made_before(tl.block_type.__init__))
        patch.setattr(tl.tensor, "__init__", _of_a_shape_before(tl.tensor.__init__))
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
            # Modules imported here are interpreted, so only those that were there before are restored.
            for name in [name for name in sys.modules if name.startswith(room.__name__ + ".")]:
                del sys.modules[name]
            for name, value in list(vars(room).items()):
                if isinstance(value, ModuleType):
                    delattr(room, name)
