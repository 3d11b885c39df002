"""Compiler jobs: a kernel with its arguments and constants, written by hand or recorded from a launch.

    with recorded(some_module, "kernel", capability=90) as jobs:
        launch(x, config)                       # launches nothing; tensors may be on the CPU or "meta"

Run-time arguments are spelled as in Triton's signatures; ``:16`` after one says that its value is divisible by 16, as the
launcher finds for every aligned pointer and stride.  A Gluon kernel is a job like any other; its descriptors are spelled
with the shared-memory layout of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """One kernel, one set of constants, one card."""

    label: str
    kernel: str
    "module:name"
    arguments: Mapping[str, Any]
    """run-time arguments by name: *bf16:16, i32, fp32, tensordesc<bf16[64,128]>; of a tuple a list of them, or by name
    where it has field names; None for what is compiled in and is part of `constants`"""
    constants: Mapping[str, Any]
    capability: int
    "90 is sm_90"
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    "further compiler options, such as maxnreg"


@contextmanager
def recorded(module: Any, *names: str, capability: int) -> Iterator[list[Job]]:
    """While open, launch none of these kernels of a module, but record each launch as a job.

    Args:
        module: with the kernels as attributes; not imported for the interpreter.
        names: names of the kernels.
        capability: of the card that the jobs are for.

    Yields:
        The jobs so far, labelled with the kernel's name and a number.
    """
    jobs: list[Job] = []
    kernels = {name: getattr(module, name) for name in names}
    for name, kernel in kernels.items():
        setattr(module, name, _Launches(jobs, name, kernel, capability))
    try:
        yield jobs
    finally:
        for name, kernel in kernels.items():
            setattr(module, name, kernel)


class _Launches:
    """Replaces a kernel: ``kernel[grid](...)`` records a job."""

    def __init__(self, jobs: list[Job], name: str, kernel: Any, capability: int) -> None:
        self.jobs, self.name, self.kernel, self.capability = jobs, name, kernel, capability

    def __getitem__(self, grid: tuple[int, ...]) -> _Launches:
        return self

    def __call__(self, *values: Any, **named: Any) -> None:
        given = dict(zip(self.kernel.arg_names, values, strict=False)) | named
        options = {name: given.pop(name) for name in list(given) if name not in self.kernel.arg_names}
        constexprs = {param.name for param in self.kernel.params if param.is_constexpr}
        unseen = {param.name for param in self.kernel.params if param.do_not_specialize}
        spelled = {
            name: _spell(value, unseen=name in unseen) for name, value in given.items() if name not in constexprs
        }
        arguments = {name: text for name, text in spelled.items() if text is not None}
        self.jobs.append(
            Job(
                f"{self.name} {len(self.jobs)}",
                f"{self.kernel.fn.__module__}:{self.kernel.fn.__name__}",
                arguments,
                {
                    name: _plain(value)
                    for name, value in given.items()
                    if name not in arguments or isinstance(value, tuple)
                },
                self.capability,
                options.pop("num_warps", 4),
                options.pop("num_stages", 3),
                options,
            )
        )


_SPELLED = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "bool": "i1",
    "float8_e4m3fn": "fp8e4nv",
}


def _plain(value: Any) -> Any:
    """A tuple as JSON: a list, or by name where it has field names; tensors, which are no constants, are left out."""
    if not isinstance(value, tuple):
        return None if hasattr(value, "data_ptr") else value
    plain = [_plain(one) for one in value]
    return dict(zip(value._fields, plain, strict=True)) if hasattr(value, "_fields") else plain


def _spell(value: Any, *, unseen: bool) -> Any:
    """A run-time argument as in signatures; None for what the launcher would compile in: None and 1.

    For an `unseen` one, which must not be specialised, only the type counts.
    """
    if isinstance(value, tuple):  # the launcher specializes on every number of a tuple
        spelled = [_spell(one, unseen=False) for one in value]
        return dict(zip(value._fields, spelled, strict=True)) if hasattr(value, "_fields") else spelled
    if value is None or (type(value) is int and value == 1 and not unseen):
        return None
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return ("i32" if -(2**31) <= value < 2**31 else "i64") + ":16" * (value % 16 == 0 and not unseen)
    if isinstance(value, float):
        return "fp32"
    dtype = _SPELLED[str(getattr(value, "base", value).dtype).removeprefix("torch.")]
    if hasattr(value, "block_shape"):
        tile = f"{dtype}[{','.join(map(str, value.block_shape))}]"
        return f"tensordesc<{tile},{value.layout!r}>" if hasattr(value, "layout") else f"tensordesc<{tile}>"
    return f"*{dtype}" + ":16" * (value.data_ptr() % 16 == 0)
