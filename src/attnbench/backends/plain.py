"""A plain function ``def attention(q, k, v, causal, scale)``, or another callable, in a user's file as a backend.

Tensors are [batch, heads, seqlen, dim] as in torch's own attention, or [batch, seqlen, heads, dim] if the file
has ``layout = "bshd"``; the result has the same layout.  Gradients come from autograd.  The backend is named after the
file.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Launch
from attnbench.backends.dense import ALL_DTYPES, DenseBackend, Limits
from attnbench.backends.differentiable import differentiable
from attnbench.errors import UsageError, refusal

if TYPE_CHECKING:
    from attnbench.workloads.attention.case import AttentionCase
    from attnbench.workloads.attention.inputs import AttentionInputs
FUNCTION = "attention"
OPERANDS = ("q", "k", "v")
OPTIONS = ("causal", "scale", "window")
LAYOUTS = ("bhsd", "bshd")
SIGNATURE = "def attention(q, k, v, causal, scale)"


class PlainFunction(DenseBackend):
    """One function of a file; subclasses name it and what it accepts."""

    install, devices = "a function of a --backends file", ("cpu", "cuda")
    function: Callable[..., Any]
    options: tuple[str, ...]
    heads_first: bool

    @contextmanager
    def session(self, case: AttentionCase, inputs: AttentionInputs) -> Iterator[Launch]:
        """Use the session's own operands, and pass the case's options by name."""
        given = {name: getattr(case, name) for name in self.options}
        yield differentiable(
            functools.partial(type(self).function, **given), case, inputs, heads_first=self.heads_first
        )


def plain_backend(function: Callable[..., Any], layout: object, file: Path) -> type[Backend]:
    """Make the backend of a file's function.

    Args:
        function: may omit causal and scale, and may accept a window (left, right); can be a partial function, a
            callable object or a torch module.
        layout: bhsd or bshd.
        file: where it is defined.

    Raises:
        UsageError: it does not accept q, k and v, requires an argument that no case has, or the layout is unknown.
    """
    if layout not in LAYOUTS:
        raise UsageError(
            refusal(
                "backends",
                "file",
                file.name,
                f"has layout={layout!r}",
                f"one of {', '.join(LAYOUTS)}: the order of batch, heads, sequence and dim",
            )
        )
    signature = _signature(function, file)
    who = f"{FUNCTION}{signature}"
    names = {
        name: one for name, one in signature.parameters.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }
    wanted = [name for name, one in names.items() if one.default is one.empty and name not in (*OPERANDS, *OPTIONS)]
    if tuple(names)[:3] != OPERANDS or wanted:
        wrong = f"wants {wanted[0]}" if tuple(names)[:3] == OPERANDS else "does not begin with q, k, v"
        raise UsageError(
            refusal(
                "backends",
                "file",
                file.name,
                f"has {who}, which {wrong}",
                SIGNATURE,
                "causal, scale and window may be left out",
            )
        )
    options = tuple(name for name in OPTIONS if name in names)
    limits = Limits(
        dtypes=ALL_DTYPES,
        headdim_v=True,
        gqa=True,
        bottom_right=True,
        empty_rows=True,
        backward=True,
        window="window" in options,
    )
    body = {
        "name": file.stem,
        "title": f"{FUNCTION} of {file.name}",
        "function": staticmethod(function),
        "options": options,
        "limits": limits,
        "heads_first": layout == LAYOUTS[0],
        "__module__": getattr(function, "__module__", None) or __name__,
    }
    if "causal" not in options:
        body["check"] = _without_mask
    return type("Plain", (PlainFunction,), body)


def _signature(function: Callable[..., Any], file: Path) -> inspect.Signature:
    """Return its signature; for a torch module, that of its `forward`.

    Raises:
        UsageError: it cannot be read, as for a function in C, or calling it does not compute anything.
    """
    called = getattr(function, "forward", function)
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called):
        wrong = f"has {FUNCTION}, whose calls do not compute: it is a generator or async"
        raise UsageError(refusal("backends", "file", file.name, wrong, SIGNATURE))
    try:
        return inspect.signature(called)
    except (TypeError, ValueError):
        wrong = f"has {FUNCTION}, which does not say what it takes"
        raise UsageError(refusal("backends", "file", file.name, wrong, SIGNATURE)) from None


def _without_mask(self: PlainFunction, case: AttentionCase, machine: Any) -> None:
    """Refuse a mask that the function has no argument for.

    Raises:
        Unsupported: it is causal, or any limit is exceeded.
    """
    from attnbench.errors import Unsupported

    DenseBackend.check(self, case, machine)
    if case.causal:
        raise Unsupported(refusal(self.name, "causal", case.causal, f"is not an argument of {FUNCTION}", SIGNATURE))
