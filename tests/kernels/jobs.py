"""Jobs of the compilers: a kernel with its arguments and constants, written down or recorded from a launch.

    with recorded(some_module, "kernel", capability=90) as jobs:
        launch(x, config)                       # launches nothing; tensors may lie on the CPU or be "meta"

Run-time arguments are spelled as Triton's signatures spell them; ``:16`` behind one says that its value is
divisible by 16, as the launcher finds out of every aligned pointer and stride.  A kernel in Gluon is a job like any
other; its descriptors are spelled with how a tile lies in shared memory.
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
    where it has names, None for what is compiled in and stands in `constants`"""
    constants: Mapping[str, Any]
    capability: int
    "90 is sm_90"
    num_warps: int = 4
    num_stages: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    "further options of the compiler, such as maxnreg"


@contextmanager
def recorded(module: Any, *names: str, capability: int) -> Iterator[list[Job]]:
    """Launch none of these kernels of a module while open, but note each launch as a job.

    Args:
        module: whose attributes the kernels are, not imported to be interpreted.
        names: of the kernels.
        capability: of the card the jobs are for.

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
    """Stands for a kernel: ``kernel[grid](...)`` notes a job."""

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
    """A tuple as JSON has it: a list, or by name where it has names; a tensor in it is no constant, and is left out."""
    if not isinstance(value, tuple):
        return None if hasattr(value, "data_ptr") else value
    plain = [_plain(one) for one in value]
    return dict(zip(value._fields, plain, strict=True)) if hasattr(value, "_fields") else plain


def _spell(value: Any, *, unseen: bool) -> Any:
    """A run-time argument as signatures spell it; None for what the launcher would compile in: None and 1.

    Of an `unseen` one, which is not to be specialised, only the type is looked at.
    """
    if isinstance(value, tuple):  # of whose numbers the launcher looks at each, whatever it is told
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
