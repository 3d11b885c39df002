"""Operators of PyTorch (`torch.ops.attnbench`) for compilers, exports, dispatch modes and transforms.

An eager call on plain tensors bypasses them, because a dispatch to Python costs more than a whole cached call.
`needs_operator` decides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.shared import card
from attnbench.kernels.shared.limits import as_float

NAMESPACE = "attnbench"
_PLAIN = (Tensor, torch.nn.Parameter)
"Types of tensors that are plain memory."
_WHOLE = (int, torch.SymInt)
_EXACT: dict[str, tuple[type, ...]] = {
    "int": _WHOLE,
    "SymInt": _WHOLE,
    "float": (float, torch.SymFloat, *_WHOLE),
    "str": (str,),
    "Tensor": (),
}
"Types in which an argument of a schema is passed: PyTorch would take True for 1, and refuse others in words of its own."


def needs_operator(*tensors: Tensor | None) -> bool:
    """Whether a call must go through its operator: it is compiled, traced or transformed, or a tensor is not plain memory."""
    # In a frame that `torch.compile` skips, such as under a dispatch mode, it would compile the functions called next.
    if torch.compiler.is_compiling() or torch._C._dynamo.eval_frame.get_eval_frame_callback():
        return True
    for x in tensors:
        if type(x) in _PLAIN:
            if x.is_neg():  # type: ignore[union-attr]  # lazily negated: the dispatcher materializes it
                return True
        elif isinstance(x, Tensor):
            return True
    modes = torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active()
    if modes or torch._C._is_tracing():  # by torch.jit.trace, where shapes are tensors outside of operators
        return True
    first = tensors[0]
    return isinstance(first, Tensor) and first.is_meta and card.stand_in is None  # has shapes alone


def needs_graph(*tensors: Tensor | None) -> bool:
    """Whether autograd must see a call: for gradients, or to refuse forward-mode derivatives."""
    if forward_ad._current_level >= 0:
        return True
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def cast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Tensors cast to autocast's dtype where autocast is on, as for PyTorch's own attention."""
    if not torch._C._is_any_autocast_enabled():
        return tensors
    first = tensors[0]
    assert first is not None
    device = first.device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x is None or not _is_cast(x, device) else x.to(dtype) for x in tensors)


def _is_cast(x: Tensor, device: str) -> bool:
    return x.is_floating_point() and x.dtype is not torch.float64 and x.device.type == device


def refuse_in_operator(who: str, *, validate: bool, **configs: object) -> None:
    """Refuse what an operator does not support.

    Raises:
        ValueError: naming the argument, and what is accepted.
    """
    if validate:
        raise ValueError(f"{who}: validate=True synchronizes with the device; False in compiled code")
    for name, config in configs.items():
        if config is not None:
            raise ValueError(f"{who}: {name} is given; None, the tuned default, in compiled code")


@contextmanager
def where_known() -> Iterator[None]:
    """Checks of a fake kernel, which end at the first that depends on a value in a tensor: the call itself makes them all.

    Such numbers are `offsets.diff().max().item()` and the rows of `x[mask]`; tracing has no value for them.
    """
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    try:
        yield
    except GuardOnDataDependentSymNode:
        pass


def without_gradients(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Register an operator without gradients: its results are constants, like those of an eager call."""
    results = output if isinstance(output, tuple) else (output,)
    ctx.mark_non_differentiable(*results)
    ctx.given = len(inputs)


def no_gradients(ctx: Any, *_grads: Tensor | None) -> tuple[None, ...]:
    """No gradients for the arguments."""
    return (None,) * ctx.given


def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Set an operator up that computes gradients."""


def no_second(ctx: Any, *_grads: Tensor | None) -> tuple[None, ...]:
    """Refuse gradients of gradients, for which PyTorch would take 0.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(f"{NAMESPACE}: gradients have no derivatives; its functions are differentiable once")


class Operator:
    """One operator, whose parts are functions of a module, looked up in each call because tests import modules anew."""

    def __init__(
        self,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        setup: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
        flops: Callable[..., int] | None = None,
        casts: int = 0,
    ) -> None:
        """Define an operator.

        Args:
            schema: name, arguments and results.
            run: computes it.
            fake: checks its arguments, and makes empty results.
            setup: saves for the backward, as for `torch.library.register_autograd`.
            backward: gradients of all arguments.
            flops: what `FlopCounterMode` counts for these arguments (`shared.flops`); None: nothing.
            casts: number of leading arguments that autocast casts.
        """
        self.name = schema.partition("(")[0]
        self._fake = _now(fake)
        self._exact, self._casts = exact_types(schema), casts
        self._function = self._transformed(_now(setup), _now(backward)) if setup and backward else None
        defined: dict[str, torch.library.Library] = vars(getattr(torch.ops, NAMESPACE)).setdefault("_defined", {})
        if self.name in defined:
            return
        whole = f"{NAMESPACE}::{self.name}"
        library = defined[self.name] = torch.library.Library(NAMESPACE, "FRAGMENT")
        library.define(schema, tags=(torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag))
        for key in ("CPU", "CUDA"):
            library.impl(self.name, _refusing_forward_mode(_now(run), self.name), key)
        torch.library.register_fake(whole, _now(fake), lib=library)
        if flops is not None:
            register_flop_formula(getattr(torch.ops.attnbench, self.name), get_raw=True)(_counting(_now(flops)))
        if backward is not None and setup is not None:
            torch.library.register_autograd(whole, _now(backward), setup_context=_now(setup), lib=library)
        if not schema.endswith("()"):  # PyTorch decomposes an operator that changes its arguments by itself
            torch.library.register_vmap(whole, self._one_by_one, lib=library)
        else:  # and fails where one is negated when it is read, which `facts_of` refuses
            library.impl(self.name, torch.library.fallthrough_kernel, "Negative")
        if casts:
            for key in ("AutocastCPU", "AutocastCUDA"):
                library.impl(self.name, self._casting(casts, key), key)

    def _casting(self, count: int, key: str) -> Callable[..., Any]:
        excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def autocast(*arguments: Any) -> Any:
            given = cast(*arguments[:count])  # read before the key is excluded, which disables autocast
            with torch._C._ExcludeDispatchKeyGuard(excluded):
                return self(*given, *arguments[count:])

        return autocast

    def _transformed(self, setup: Callable[..., None], gradients: Callable[..., Any]) -> type[torch.autograd.Function]:
        """The operator for `torch.func.grad`, which does not take what `torch.library.register_autograd` makes."""

        class Function(torch.autograd.Function):
            forward = staticmethod(lambda *arguments: self(*arguments))
            setup_context = staticmethod(setup)
            backward = staticmethod(gradients)
            vmap = staticmethod(self._one_by_one)

        return Function

    def _one_by_one(self, info: Any, dims: tuple[object, ...], *arguments: Any) -> tuple[Any, Any]:
        """Run `torch.vmap` over a batch one element at a time: the kernels' own batch axes are fixed."""

        if not info.batch_size:
            return self._no_results(dims, arguments)

        def of(index: int) -> Any:
            pairs = zip(arguments, dims, strict=True)  # a list has a list of dims: none of them batched
            return self(*(x.select(dim, index) if isinstance(dim, int) else x for x, dim in pairs))

        found = [of(index) for index in range(info.batch_size)]
        if not isinstance(found[0], tuple):
            return torch.stack(found), 0
        return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(found[0])

    def _no_results(self, dims: tuple[object, ...], arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Results of an empty batch, whose shapes are those of an element."""
        pairs = zip(arguments, dims, strict=True)
        given = [x.new_empty((*x.shape[:dim], *x.shape[dim + 1 :])) if isinstance(dim, int) else x for x, dim in pairs]
        found = self._fake(*given)
        if not isinstance(found, tuple):
            return found.new_empty((0, *found.shape)), 0
        return tuple(x.new_empty((0, *x.shape)) for x in found), (0,) * len(found)

    def __call__(self, *arguments: Any) -> Any:
        """Call it through PyTorch's dispatcher.

        Raises:
            ValueError: an argument is refused as by an eager call, is nested or distributed, or is a tensor that compiled
                code would have to read.
        """
        for at, name, types, listed in self._exact:
            x = arguments[at]
            if isinstance(x, Tensor) and (instead := _instead_of(x)):
                raise ValueError(f"{NAMESPACE}::{self.name}: {name} is a {instead}")
            if x is not None and not _is_exact(x, types, listed):
                arguments = self._refused(arguments, at, name, types)
        if self._function is not None and _is_transformed():
            if self._casts:
                arguments = (*cast(*arguments[: self._casts]), *arguments[self._casts :])
            return self._function.apply(*arguments)
        return getattr(getattr(torch.ops, NAMESPACE), self.name).default(*arguments)

    def _refused(self, arguments: tuple[Any, ...], at: int, name: str, types: tuple[type, ...]) -> tuple[Any, ...]:
        """Refuse an argument in the words of an eager call, which the fake kernel has; else read it as such a call does."""
        x, where = arguments[at], f"{NAMESPACE}::{self.name}: {name} is a tensor"
        if isinstance(x, Tensor) and torch.compiler.is_compiling():
            raise ValueError(f"{where}, whose value compiled code does not know; a Python number")
        if isinstance(x, Tensor) and torch._C._is_tracing() and types == _WHOLE:
            raise ValueError(f"{where}, as all lengths are for torch.jit.trace; int() of it, or torch.export")
        self._fake(*arguments)
        return *arguments[:at], as_float(x), *arguments[at + 1 :]


def exact_types(schema: str) -> tuple[tuple[int, str, tuple[type, ...], bool], ...]:
    """Position, name, exact types (none: a tensor) of the arguments of a schema but flags, and whether they are lists."""
    found = []
    for at, argument in enumerate(schema[schema.index("(") + 1 : schema.index(") ->")].split(", ")):
        kind, name = argument.split()
        base = kind.partition("(")[0].rstrip("?").removesuffix("[]")
        if base in _EXACT:
            found.append((at, name, _EXACT[base], "[]" in kind))
    return tuple(found)


def _is_transformed() -> bool:
    """Whether the innermost transform of `torch.func` computes gradients, or is `vmap`, perhaps inside of one that does."""
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return False
    from torch._C._functorch import TransformType
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    return retrieve_current_functorch_interpreter().key() in (TransformType.Grad, TransformType.Vmap)


def _instead_of(x: Tensor) -> str | None:
    """What a tensor is that no operator takes, and what to pass; None of others."""
    if x.is_nested:
        return "nested tensor; packed tensors, its values() with offsets()"
    if type(x).__name__ == "DTensor":  # heads may be sharded, and rows of packed sequences may not
        return "DTensor; its to_local(), or a call in local_map of torch.distributed.tensor.experimental"
    return None


def _is_exact(x: Any, types: tuple[type, ...], listed: bool) -> bool:
    if not types:
        return isinstance(x, Tensor)
    if not listed:
        return type(x) in types
    return isinstance(x, tuple | list) and all(type(one) in types for one in x)


def _refusing_forward_mode(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @torch._disable_dynamo  # as `torch.library.custom_op` does
    def run(*arguments: Any) -> Any:
        # Otherwise PyTorch would return a derivative of 0 for one that is not supported.
        if forward_ad._current_level >= 0:
            raise NotImplementedError(f"{NAMESPACE}::{name} has no derivatives in forward mode")
        return function(*arguments)

    return run


def _counting(flops: Callable[..., int]) -> Callable[..., int]:
    @torch._disable_dynamo
    def count(*arguments: Any, out_val: Any = None) -> int:
        return flops(*arguments)

    return count


def _now(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(sys.modules[function.__module__], function.__name__)(*arguments, **named)

    return call
