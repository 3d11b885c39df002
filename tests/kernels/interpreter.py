"""Kernels run by Triton's interpreter, on CPU tensors, in this process.

Triton decides when a function is decorated whether it will be interpreted, including its own library's functions, which
another test may have imported already.  So `interpreted` replaces the library's compiled functions by interpreted ones,
imports the kernels anew, and restores everything afterwards.

Triton replaces its whole language by the interpreter's at every launch and at every call of one function by another, which
takes a quarter of a test's time, and does not undo all of it, after which nothing compiles.  Here it is done once.
"""

from __future__ import annotations

import importlib
import math
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


def _multiplied(multiply: Any) -> Any:
    """The interpreter's product of tiles, but of bf16 by value; its own multiplies the bits as integers."""
    import triton.language as tl

    def product(self: Any, a: Any, b: Any, *others: Any) -> Any:
        a, b = (self.create_fp_ext(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return multiply(self, a, b, *others)

    return product


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
        shape = tuple(of.shape.values) if of.is_block() else ()
        if shape in known:
            vars(self).update(known[shape], handle=handle, type=of, dtype=of.scalar)
        else:
            make(self, handle, of)
            known[shape] = {name: value for name, value in vars(self).items() if name in ("shape", "numel")}

    return copied


def _unwrapped(unwrap: Any, whole: frozenset[type]) -> Any:
    """The function that takes values out of `constexpr` and containers; values of the types `whole` are neither."""
    return lambda value: value if type(value) in whole else unwrap(value)


def _equal(equal: Any) -> Any:
    """Equality of types, most of which are the same object."""
    return lambda self, other: self is other or equal(self, other)


def _broadcast(broadcast: Any) -> Any:
    """The broadcast of two tiles, which compares extent by extent."""

    def of_one_shape(self: Any, left: Any, right: Any) -> Any:
        first, second = left.type, right.type
        if first.is_block() == second.is_block() and (
            not first.is_block() or first.shape.values == second.shape.values
        ):
            return left, right
        return broadcast(self, left, right)

    return of_one_shape


def _operands(convert: Any, tile: type) -> Any:
    """The conversion of two operands to one type: a number becomes a tile of it once, and tiles of one type stay."""
    known: dict[Any, Any] = {}

    def number(self: Any, value: Any, dtype: Any) -> Any:
        """The type that a tile of `dtype` and a number have together, and the number as a tile of it."""
        key = dtype.name, type(value), value, math.copysign(1, value)
        if key not in known:
            common = self.computation_type_impl(dtype, False, self.to_tensor_type(value), True, False)
            known[key] = common, self._cast_to_computation_type(value, common)
            known[key][1].handle.data.flags.writeable = False  # one for all kernels
        return known[key]

    def converted(
        self: Any,
        left: Any,
        right: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        if not arithmetic_check or div_or_mod:
            return convert(self, left, right, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
        kinds = type(left), type(right)
        if kinds[0] is tile and not left.dtype.is_ptr():
            if kinds[1] in (int, float):
                common, right = number(self, right, left.dtype)
                return self.broadcast_impl_value(self.cast(left, common), right)
            if kinds[1] is tile and left.dtype is right.dtype:
                return self.broadcast_impl_value(left, right)
        elif kinds[0] in (int, float) and kinds[1] is tile and not right.dtype.is_ptr():
            common, left = number(self, left, right.dtype)
            return self.broadcast_impl_value(left, self.cast(right, common))
        return convert(self, left, right, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    return converted


def _cast(cast: Any) -> Any:
    """The conversion of a tile, most of which have the type already."""

    def casted(self: Any, value: Any, dtype: Any, *rounding: Any, **named: Any) -> Any:
        return value if value.dtype is dtype else cast(self, value, dtype, *rounding, **named)

    return casted


def _called(language: Any) -> Any:
    """What gives a function of the language the interpreter, without the compiler's question whether it has one."""
    asks = language.core.builtin(lambda: None).__code__

    def patch_attr(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        from triton.language.semantic import TritonSemantic

        semantic = TritonSemantic(builder)
        inner = member.__wrapped__ if getattr(member, "__code__", None) is asks else member

        def call(*values: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return inner(*values, **named)

        scope.set_attr(place, name, call)

    return patch_attr


def _all_ones(ones: Any) -> Any:
    """The interpreter's value whose bits are all 1; that of Triton 3.6 has none of an unsigned type."""

    def value(self: Any, of: Any) -> Any:
        if not of.scalar.is_int_unsigned():
            return ones(self, of)
        zero = self.get_null_value(of)
        return type(zero)(~zero.data, of.scalar)

    return value


def _numbered(patch_tensor: Any) -> Any:
    """What gives tiles the interpreter's methods; that of Triton 3.6 reads a number in a way that NumPy 2.4 refuses."""

    def patched(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patched


@contextmanager
def interpreted(*names: str) -> Iterator[list[ModuleType]]:
    """Modules of kernels, imported anew to be interpreted; a plain import also gets them while this is open.

    Args:
        names: full names; other modules of `attnbench.kernels` that these import are imported anew as well.
    """
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    import attnbench.kernels as room

    with _in_the_interpreters_language(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(interpreter, "_convert_float", _rounded(interpreter._convert_float))
        patch.setattr(
            interpreter.InterpreterBuilder, "create_dot", _multiplied(interpreter.InterpreterBuilder.create_dot)
        )
        patch.setattr(
            interpreter.InterpreterBuilder,
            "get_all_ones_value",
            _all_ones(interpreter.InterpreterBuilder.get_all_ones_value),
        )
        patch.setattr(interpreter, "_get_np_dtype", _known(interpreter._get_np_dtype))
        # It computes whether integers overflow and, when not debugging, discards the result.
        builder = interpreter.interpreter_builder
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=builder.options.debug))
        patch.setattr(tl.block_type, "__init__", _made_before(tl.block_type.__init__))
        patch.setattr(tl.tensor, "__init__", _of_a_shape_before(tl.tensor.__init__))
        patch.setattr(interpreter, "_patch_attr", _called(tl))
        patch.setattr(interpreter, "_patch_lang_tensor", _numbered(interpreter._patch_lang_tensor))
        whole = frozenset({tl.tensor, int, float, bool, str, type(None), tl.dtype, tl.block_type, tl.pointer_type})
        patch.setattr(tl.core, "_unwrap_if_constexpr", _unwrapped(tl.core._unwrap_if_constexpr, whole))
        for kind in (tl.dtype, tl.block_type, tl.pointer_type):
            patch.setattr(kind, "__eq__", _equal(kind.__eq__))
        patch.setattr(TritonSemantic, "broadcast_impl_value", _broadcast(TritonSemantic.broadcast_impl_value))
        if hasattr(TritonSemantic, "to_tensor_type"):  # Triton 3.6 has another conversion
            convert = TritonSemantic.binary_op_type_checking_impl
            patch.setattr(TritonSemantic, "binary_op_type_checking_impl", _operands(convert, tl.tensor))
        patch.setattr(TritonSemantic, "cast", _cast(TritonSemantic.cast))
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
