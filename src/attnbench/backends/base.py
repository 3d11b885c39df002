"""The interface of a backend and of the launches it returns.

A backend is one file in this folder (or another package's entry point in the group
``attnbench.backends``, or a file given with ``--backends ./mine.py``) with a subclass of `Backend`
that has a name.  Importing the file must not import torch or the library; `session` does that.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

from attnbench.errors import Unavailable, Unsupported, UsageError, refusal, unknown
from attnbench.workloads.base import ATTENTION_KINDS, CaseT, InputsT

if TYPE_CHECKING:
    from torch import Tensor, device


@dataclass(frozen=True, slots=True)
class Machine:
    """Properties of the machine that a backend may need to decide whether it accepts a case."""

    device: str
    "cpu or cuda"
    capability: tuple[int, int] | None = None
    "(9, 0) on an H200; None on a CPU"
    memory_bytes: int | None = None


Check = tuple[bool, str, object, str, str]
"Whether a case is accepted, and for the refusal: field, value, what is wrong, what is accepted."


def require(who: str, *checks: Check) -> None:
    """Refuse a case that fails a check.

    Args:
        who: the backend's name.
        checks: in the order in which they are reported.

    Raises:
        Unsupported: naming the field of the first check that fails, its value and what is accepted.
    """
    for fits, field_name, value, wrong, accepted in checks:
        if not fits:
            raise Unsupported(refusal(who, field_name, value, wrong, accepted))


def card_checks(machine: Machine, least: tuple[int, int] | None, end: tuple[int, int] | None) -> list[Check]:
    """Check that a GPU is new enough for a library, and not too new; return no checks for a CPU.

    Args:
        machine: with the GPU.
        least: compute capability, or None.
        end: first compute capability that is too new, or None.
    """
    have = machine.capability
    if have is None:
        return []
    shown, first, last = (".".join(map(str, it)) if it else "" for it in (have, least, end))
    return [
        (least is None or have >= least, "compute capability", shown, "is too old", f"at least {first}"),
        (end is None or have < end, "compute capability", shown, "is not supported", f"below {last}"),
    ]


class RelL1(NamedTuple):
    """Bounds of the relative L1 distance, and of the largest error."""

    whole: float
    "of the whole output"
    head: float
    "of its worst head"
    largest: float = 0.0
    "of an element's error, as a share of the output's largest element, where that is more than the budget's other limits"


@dataclass(frozen=True, slots=True)
class Budget:
    """Limit of the largest absolute error of an output.

    The limit is ``factor`` × (error of the plain evaluation in the case's own precision) plus one rounding step of
    that precision at the output's largest value, or ``factor`` × twice the error expected from a rounding analysis,
    or ``relative`` × the output's root mean square, or ``largest`` × its largest element, for kernels that compute in a
    lower precision by design; the largest of these applies.  ``element`` × the root mean square replaces it where that
    is more, but for single elements only, not for the rows and heads.  Such a kernel may also bound the relative L1
    distance Σ|x - t| / Σ|t|, of the whole output and of its worst head; None is no bound.  That distance depends on the
    data, so `by_input` has other bounds for kinds of inputs.  `check.compare` states the whole rule, including
    gradients, rows and heads.
    """

    factor: float = 2.0
    relative: float = 0.0
    rel_l1: float | None = None
    head_rel_l1: float | None = None
    by_input: Mapping[str, RelL1] = field(default_factory=dict)
    "bounds for kinds of inputs (`--input`), in place of `rel_l1`, `head_rel_l1` and `largest`, which are for all others"
    largest: float = 0.0
    element: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values that cannot be a limit.

        Raises:
            UsageError: a value is infinite, negative or not a number.
        """
        for name in ("factor", "relative", "rel_l1", "head_rel_l1", "largest", "element"):
            value = getattr(self, name)
            if value is None and name.endswith("rel_l1"):
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise UsageError(refusal("budget", name, value, "cannot be used", "a finite number, at least 0"))
        if strange := set(self.by_input) - set(ATTENTION_KINDS):
            known = f"one of {', '.join(ATTENTION_KINDS)}"
            raise UsageError(refusal("budget", "by_input", min(strange), "is no kind of inputs", known))
        for kind in self.by_input:
            self.on(kind)

    def on(self, kind: str) -> Budget:
        """Return the budget for inputs of a kind (`--input`), or for a file of captured ones.

        Raises:
            UsageError: its bound is infinite, negative or not a number.
        """
        whole, head, largest = self.by_input.get(kind, (self.rel_l1, self.head_rel_l1, self.largest))
        return replace(self, rel_l1=whole, head_rel_l1=head, largest=largest, by_input={})


@dataclass(frozen=True, slots=True)
class Config:
    """One point of a backend's configuration space."""

    short: str
    "no comma, bracket or blank; written as backend[short]"
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InPlace:
    """A phase that is timed in place, inside a call of the whole launch."""

    call: Callable[[], Any]
    "the whole launch"
    reported_ms: Callable[[], float]
    "time of the phase in the last call; may synchronise"


class Preparing:
    """A kernel as a function (`Backend.attend`) whose call prepares operands first: predicts a map, quantises.

    The preparation runs in ``with self.preparing():``, so that callers can time that part and profilers can name it.
    """

    preparing: Callable[[], AbstractContextManager[Any]] = staticmethod(nullcontext)


@dataclass(slots=True, kw_only=True)
class Launch:
    """What a session yields: closures over tensors that are ready.  None of them may synchronise."""

    forward: Callable[[], Any]
    outputs: Callable[[], Mapping[str, Tensor]]
    "results of the last call in the workload's own layout: out, and dq, dk, dv after backward; untimed"
    reload: Callable[[Any], None]
    "copies in new input values of the same shapes (new data reveals cached answers); untimed"
    backward: Callable[[], Any] | None = None
    "uses the last forward; accumulates no gradients"
    reset: Callable[[], None] | None = None
    "untimed, before each sample, for launches that keep state"
    reported_ms: Callable[[], float] | None = None
    "the kernel's own time of the last call (timer `reported`); may synchronise"
    phases: Mapping[str, Callable[[], Any] | InPlace] = field(default_factory=dict)
    "quantise, plan, predict, kernel …: parts that are also timed, apart or in place"
    marked: Callable[[Callable[[str], AbstractContextManager[Any]]], None] | None = None
    "given a function that marks a named range, marks the parts of every later call: for profilers"
    whole: Callable[[], Mapping[str, float | None]] | None = None
    """Called once after all samples, such as a generation of many steps: returns further counters for the record; None
    for one whose absence a note of `found_out` explains."""
    found_out: Callable[[], Sequence[str]] = tuple
    "further notes, available after `whole`"
    at_length: Callable[[], Any] | None = None
    "one run of `whole`, such as one generation, without warm-up and without evaluating its result: for profilers"
    executed_flops: int | None = None
    devices: int = 1
    "number that share the work of a call: shares of the peak refer to all of them"
    counters: Mapping[str, float] = field(default_factory=dict)
    "for the record, by name: properties of one call, such as requests, tokens, tokens found cached"
    capturable: bool = True
    "may be recorded in a CUDA graph"
    notes: tuple[str, ...] = ()
    "for the record: the kernel a dispatcher chose, a mask turned into a tensor"

    def call(self, mode: str) -> Callable[[], Any]:
        """Return the closure that a sample of this mode times."""
        if mode == "fwd":
            return self.forward
        backward = self.backward
        if backward is None:
            raise Unavailable(f"launch: mode={mode} has no backward; fwd")
        if mode == "bwd":
            return backward

        def both() -> None:
            self.forward()
            backward()

        return both


class Backend(ABC, Generic[CaseT, InputsT]):
    """One implementation of one workload.  Most adapters are a name, a probe and a session.

    The type parameters are the workload's classes of cases and inputs: ``Backend[AttentionCase, "AttentionInputs"]``.
    Code that handles backends of several workloads omits them.
    """

    name: ClassVar[str]
    workload: ClassVar[str]
    variant: ClassVar[str]
    "the function it computes, which selects the oracle"
    title: ClassVar[str] = ""
    install: ClassVar[str]
    "the command that installs it, or 'part of torch'; {max_jobs} is filled in when it is shown"
    module: ClassVar[str | None] = None
    "the module that the session imports; looked up with find_spec"
    checkout: ClassVar[str | None] = None
    "of a library that is on no index: the environment variable that names the folder to import `module` from"
    distribution: ClassVar[str | None] = None
    "the package whose version the record carries; None: that of `module`'s name, without a module torch"
    devices: ClassVar[tuple[str, ...]] = ("cuda",)
    compiles: ClassVar[bool] = False
    "the first call compiles for seconds"
    ahead: ClassVar[bool] = False
    """a session takes inputs without memory (device "meta") while its kernels are compiled ahead: it looks at no value of
    theirs, and launches Triton's kernels alone"""
    in_ranks: ClassVar[bool] = False
    "its kernels run in processes that a session starts, a device each"
    references: ClassVar[tuple[str, ...]] = ()
    "backends shown beside the configurations in a tuning table, the first for Relative Performance"
    carries: ClassVar[tuple[str, ...]] = ()
    "workloads whose backends can run inside this one: on its workload, the name X of one of them means NAME[X]"
    wraps: ClassVar[str | None] = None
    "a workload whose backends can be rows beside this one's: on its workload, the name X of one means NAME[X]"
    default: ClassVar[str | None] = None
    "short form of the configuration that a session uses if none is given, if it is the same for every case"
    others: Mapping[str, Backend] = MappingProxyType({})
    "for a backend that carries others: all backends by name, including those of users' files; set by the registry"
    tested: ClassVar[str | None] = None
    "card and versions it was tested on; None is listed as untested"

    def __init__(self, config: Config | None = None) -> None:
        self.config = config

    def probe(self) -> None:
        """Check that the library is installed, without importing it.

        Raises:
            Unavailable: it is not installed.
        """
        if self.module and not module_exists(self.module):
            raise Unavailable(f"{self.name}: module={self.module} is not installed; {self.install}")

    def variant_of(self, case: CaseT) -> str:
        """Return the function computed for this case, for backends where it depends on the case."""
        return self.variant

    def check(self, case: CaseT, machine: Machine) -> None:
        """Refuse a case this implementation does not support; the base class refuses devices not in `devices`.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        there = " and ".join(self.devices)
        require(self.name, (machine.device in self.devices, "device", machine.device, "is not supported", there))

    def prestart(self, case: CaseT, device: device) -> None:
        """Start in the background what a session will need, such as processes, while inputs and oracles are made.

        Errors are ignored: the session meets them again, and they are reported there.
        """

    def check_together(self, case: CaseT, workloads: Set[str]) -> None:
        """For a backend that carries others: refuse a case with an option that none of its rows uses.

        Args:
            case: of the group.
            workloads: of the backends inside its rows.

        Raises:
            UsageError: naming the field.
        """

    def budget(self, case: CaseT) -> Budget:
        """Return how far this implementation may be from the oracle."""
        return Budget()

    def configs(self, case: CaseT) -> Iterable[Config]:
        """Return the configurations that `tune` and `list configs` may try."""
        return ()

    def default_of(self, case: CaseT) -> Config | None:
        """Return the configuration that a session uses if none is given; None if the backend does not tell."""
        return None if self.default is None else self.config_of(self.default, case)

    def config_of(self, short: str, case: CaseT) -> Config:
        """Return the configuration of a short form for this case; one of `configs`, unless a backend accepts more.

        Raises:
            UsageError: there is none; the message says what there is.
        """
        there = {config.short: config for config in self.configs(case)}
        if not there:
            wrong = "asks for a configuration"
            raise UsageError(refusal("backends", "name", f"{self.name}[{short}]", wrong, f"{self.name} has none"))
        if short not in there:
            raise unknown(self.name, "config", short, there)
        return there[short]

    def version(self) -> str | None:
        """Version of the library, without importing it; None where no package has it."""
        try:
            return importlib.metadata.version(self.distribution or (self.module or "torch").partition(".")[0])
        except importlib.metadata.PackageNotFoundError:
            return None

    def attend(self, case: CaseT, device: device) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """Return the kernel as a function, for callers with tensors of their own: a model with this attention.

        Args:
            case: dense, in mode fwd, and accepted by `check`.
            device: of the tensors.

        Returns:
            ``out = fn(q, k, v)``, all [B, S, H, D] with any strides but a contiguous last dimension, out a new tensor;
            None if only a session can run the kernel, on tensors of its own.
        """
        return None

    @abstractmethod
    def session(self, case: CaseT, inputs: InputsT) -> AbstractContextManager[Launch]:
        """Do the untimed set-up, yield the launch, and undo every change of a global setting.

        All sessions of a group are open at once: a session leaves no global set while it is open.
        """


def module_exists(name: str) -> bool:
    """Return whether `name` can be imported, without importing anything.

    ``find_spec("a.b")`` would import the package ``a``, and with it torch and a library's own
    start-up; searching the paths of the specs does not.
    """
    if name in sys.modules:
        return sys.modules[name] is not None
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return False
            # Only the last component: for a full name, a namespace package looks up its imported parent.
            spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None
