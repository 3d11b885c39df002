"""The seam: what a backend is and what it hands over.

A backend is one file in this folder (or another package's entry point in the group
``attnbench.backends``, or a file given with ``--backends ./mine.py``) with a subclass of `Backend`
that has a name.  Importing the file must not import torch or the library: `session` does that.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from attnbench.errors import Unavailable, Unsupported, UsageError, refusal, unknown
from attnbench.workloads.base import CaseT, InputsT

if TYPE_CHECKING:
    from torch import Tensor, device


@dataclass(frozen=True, slots=True)
class Machine:
    """What a backend may want to know before it accepts a case."""

    device: str
    "cpu or cuda"
    capability: tuple[int, int] | None = None
    "(9, 0) on an H200; None on a CPU"
    memory_bytes: int | None = None


Check = tuple[bool, str, object, str, str]
"Whether a case is accepted, and else: field, value, what is wrong, what is accepted."


def require(who: str, *checks: Check) -> None:
    """Refuse a case that a check does not accept.

    Args:
        who: the backend's name.
        checks: in the order in which they are reported.

    Raises:
        Unsupported: naming the field of the first that fails, its value and what is accepted.
    """
    for fits, field_name, value, wrong, accepted in checks:
        if not fits:
            raise Unsupported(refusal(who, field_name, value, wrong, accepted))


def card_checks(machine: Machine, least: tuple[int, int] | None, end: tuple[int, int] | None) -> list[Check]:
    """Whether a card is new enough for a library, and old enough; nothing of a CPU.

    Args:
        machine: with the card.
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


@dataclass(frozen=True, slots=True)
class Budget:
    """How large the largest absolute error of an output may be.

    ``factor`` × (error of the plain evaluation in the case's own precision) plus one rounding step
    of that precision at the output's largest value, or as many times twice the error that an analysis of
    rounding expects; or ``relative`` × the output's root mean square, if that is larger (for kernels that
    compute in a lower precision by design).  Such a kernel may also bound the relative L1 distance Σ|x - t| / Σ|t|,
    of the whole output and of its worst head: None is no bound.  `check.compare` states the whole rule: gradients,
    and what holds of rows and heads.
    """

    factor: float = 2.0
    relative: float = 0.0
    rel_l1: float | None = None
    head_rel_l1: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no error can be held against.

        Raises:
            UsageError: a number that is infinite, no number or negative.
        """
        for name in ("factor", "relative", "rel_l1", "head_rel_l1"):
            value = getattr(self, name)
            if value is None and name.endswith("rel_l1"):
                continue
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise UsageError(refusal("budget", name, value, "cannot be used", "a finite number, at least 0"))


@dataclass(frozen=True, slots=True)
class Config:
    """One point of a backend's configuration space."""

    short: str
    "no comma, bracket or blank; written backend[short]"
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InPlace:
    """A phase that is timed where it stands, inside a call of the whole."""

    call: Callable[[], Any]
    "the whole"
    reported_ms: Callable[[], float]
    "what the phase took in the last call; may synchronise"


class Preparing:
    """A kernel as a function (`Backend.attend`) whose call prepares operands first: predicts a map, quantises.

    It does so in ``with self.preparing():``, so that who calls it can time that part, and a profiler name it.
    """

    preparing: Callable[[], AbstractContextManager[Any]] = staticmethod(nullcontext)


@dataclass(slots=True, kw_only=True)
class Launch:
    """What a session hands over: closures over tensors that are ready.  Nothing in them may synchronise."""

    forward: Callable[[], Any]
    outputs: Callable[[], Mapping[str, Tensor]]
    "results of the last call in the workload's own layout: out, and dq, dk, dv after backward; untimed"
    reload: Callable[[Any], None]
    "take new input values of the same shapes (fresh data catches cached answers); untimed"
    backward: Callable[[], Any] | None = None
    "uses the last forward; accumulates no gradients"
    reset: Callable[[], None] | None = None
    "untimed, before a sample, for what keeps state"
    reported_ms: Callable[[], float] | None = None
    "the kernel's own figure for the last call (timer `reported`); may synchronise"
    phases: Mapping[str, Callable[[], Any] | InPlace] = field(default_factory=dict)
    "quantise, plan, predict, kernel …: parts that are also timed, apart or in place"
    marked: Callable[[Callable[[str], AbstractContextManager[Any]]], None] | None = None
    "take what marks a range by its name, and mark the parts of every later call: for profilers"
    whole: Callable[[], Mapping[str, float | None]] | None = None
    """Carried out once after all samples, such as a generation of many steps: further counters for the record, None
    where a note of `found_out` says why."""
    found_out: Callable[[], Sequence[str]] = tuple
    "further notes, known once `whole` was carried out"
    at_length: Callable[[], Any] | None = None
    "one of those alone, such as one generation, without warm-up and without what is computed of it: for profilers"
    executed_flops: int | None = None
    devices: int = 1
    "that share the work of a call: shares of the peak are of all of them"
    counters: Mapping[str, float] = field(default_factory=dict)
    "for the record, by name: what one call serves and holds, such as requests, tokens, tokens found cached"
    capturable: bool = True
    "may be recorded in a CUDA graph"
    notes: tuple[str, ...] = ()
    "what the record should say of this launch: the kernel a dispatcher chose, a mask turned into a tensor"

    def call(self, mode: str) -> Callable[[], Any]:
        """The closure that a sample of this mode times."""
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

    The parameters are the workload's classes of cases and inputs: ``Backend[AttentionCase, "AttentionInputs"]``.  Where
    backends of several workloads are handled alike, the parameters are left out.
    """

    name: ClassVar[str]
    workload: ClassVar[str]
    variant: ClassVar[str]
    "which function it computes: names the oracle"
    title: ClassVar[str] = ""
    install: ClassVar[str]
    "the line that installs it, or 'part of torch'; {max_jobs} is left for who shows it to fill in"
    module: ClassVar[str | None] = None
    "the very module the session imports, asked for with find_spec"
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
    "backends that the table of a tuning shows beside the configurations, the first for Relative Performance"
    carries: ClassVar[tuple[str, ...]] = ()
    "workloads whose backends run inside this one: the name of one of them, X, means NAME[X] here"
    wraps: ClassVar[str | None] = None
    "a workload whose backends are rows beside this one's: X, asked for by name, means NAME[X] here"
    default: ClassVar[str | None] = None
    "short form of the configuration of a session that is given none, where it is the same for every case"
    others: Mapping[str, Backend] = MappingProxyType({})
    "of a backend that carries others: all there are by name, a user's file's among them; set by who lists them"
    tested: ClassVar[str | None] = None
    "card and versions it ran on; None is listed as untested"

    def __init__(self, config: Config | None = None) -> None:
        self.config = config

    def probe(self) -> None:
        """Ask for the library without importing it.

        Raises:
            Unavailable: it is not installed.
        """
        if self.module and not module_exists(self.module):
            raise Unavailable(f"{self.name}: module={self.module} is not installed; {self.install}")

    def variant_of(self, case: CaseT) -> str:
        """The function computed for this case, where that depends on it."""
        return self.variant

    def check(self, case: CaseT, machine: Machine) -> None:
        """Refuse a case this implementation cannot take; here, of any case, a device that is not one of `devices`.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        there = " and ".join(self.devices)
        require(self.name, (machine.device in self.devices, "device", machine.device, "is not supported", there))

    def check_together(self, case: CaseT, workloads: Set[str]) -> None:
        """Of a backend that carries others: refuse a case that asks for what none of its rows does.

        Args:
            case: of the group.
            workloads: of the backends inside its rows.

        Raises:
            UsageError: naming the field.
        """

    def budget(self, case: CaseT) -> Budget:
        """How far this implementation may be from the oracle."""
        return Budget()

    def configs(self, case: CaseT) -> Iterable[Config]:
        """Configurations `tune` and `list configs` may try."""
        return ()

    def default_of(self, case: CaseT) -> Config | None:
        """The configuration of a session that is given none; None where the backend does not say."""
        return None if self.default is None else self.config_of(self.default, case)

    def config_of(self, short: str, case: CaseT) -> Config:
        """The configuration a short form names for this case; one of `configs`, unless a backend reads more of them.

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
        """The kernel as a function, for who has tensors of their own: a model with this attention in its layers.

        Args:
            case: dense and in mode fwd; one that `check` accepts.
            device: of the tensors.

        Returns:
            ``out = fn(q, k, v)``, all [B, S, H, D] of any strides but the last, out a new tensor; None where only a
            session can run the kernel, on tensors of its own.
        """
        return None

    @abstractmethod
    def session(self, case: CaseT, inputs: InputsT) -> AbstractContextManager[Launch]:
        """Untimed set-up; yields the launch; undoes every global.

        All sessions of a group are open at once: a session leaves no global set while it is open.
        """


def module_exists(name: str) -> bool:
    """Whether `name` can be imported, asked without importing anything.

    ``find_spec("a.b")`` would import the package ``a``, and with it torch and a library's own
    start-up; walking the search paths of the specs does not.
    """
    if name in sys.modules:
        return sys.modules[name] is not None
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return False
            # Its last name only: by its full name a namespace package looks for its parent among the imported.
            spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None
