"""What the adapters for a serving step share: a session with a cache that is brought back before each sample.

A configuration is none or words joined by +: ``no-cache`` answers the same requests without a cache, all of it
computed; ``graph`` carries out the whole step as one CUDA graph, where the attention takes all lengths from the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.backends.base import Backend, Config, Launch, Machine
from attnbench.errors import AttnbenchError, Unsupported, WorkerError, refusal

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from attnbench.models.hstu_ranking.attention import AttentionMaker
    from attnbench.models.hstu_ranking.model import Mark, Prepared
    from attnbench.models.paged_cache import CacheStep
    from attnbench.workloads.hstu_serving.case import ServingCase
    from attnbench.workloads.hstu_serving.inputs import ServingInputs

NO_CACHE, GRAPH = "no-cache", "graph"
MIB = 2**20
SETS = 2
"Sets of requests that a cache has room for: the two that a launch is checked with."


class ServingBackend(Backend["ServingCase", "ServingInputs"]):
    """An adapter for the workload `hstu-serving`; the attention inside the step is its own."""

    workload = "hstu-serving"
    variant = "logits"
    install = "part of torch"
    graphs: ClassVar[bool] = False
    "whether the attention takes all lengths from the device, so that one CUDA graph serves other requests"

    @property
    def cached(self) -> bool:
        """Whether this row has a cache."""
        return self.config is None or bool(self.config.values.get("cache", True))

    @property
    def graph(self) -> bool:
        """Whether this row's steps are CUDA graphs."""
        return self.config is not None and bool(self.config.values.get("graph", False))

    def check(self, case: ServingCase, machine: Machine) -> None:
        """Refuse a cache where the model has none, and graphs where there are none.

        Raises:
            Unsupported: naming the model and the reason.
        """
        from attnbench.models.hstu_ranking.config import RECENCY_REASON

        if self.graph and machine.device != "cuda":
            raise Unsupported(refusal(self.name, "device", machine.device, "has no CUDA graphs", "cuda"))
        if self.cached and case.config.recency:
            raise Unsupported(refusal(self.name, "model", case.model, RECENCY_REASON, f"{self.name}[{NO_CACHE}]"))

    def configs(self, case: ServingCase) -> Iterable[Config]:
        """With a cache or without, launch by launch or as a CUDA graph."""
        found = [Config(NO_CACHE, {"cache": False})]
        if self.graphs:
            found += [Config(GRAPH, {"graph": True}), Config(f"{NO_CACHE}+{GRAPH}", {"cache": False, "graph": True})]
        return found

    @abstractmethod
    def attention(self, case: ServingCase) -> AbstractContextManager[str | AttentionMaker]:
        """The attention of a step, as `HstuRanking` takes it, for as long as a session is open."""

    @contextmanager
    def session(self, case: ServingCase, inputs: ServingInputs) -> Iterator[Launch]:
        """A cache of its own, filled by the step that came before."""
        with self.attention(case) as attention:
            yield ServingSession(case, inputs, attention, cached=self.cached, graph=self.graph).launch()


class ServingSession:
    """A model that serves one batch again and again, its cache as the case says before each step."""

    def __init__(
        self,
        case: ServingCase,
        inputs: ServingInputs,
        attention: str | AttentionMaker,
        *,
        cached: bool,
        graph: bool = False,
        capture: bool | None = None,
    ) -> None:
        """A session.

        Args:
            case: the problem.
            inputs: model and requests.
            attention: of the steps.
            cached: whether there is a cache.
            graph: whether a step runs from the fixed buffers of a graph.
            capture: whether it is captured; None: on a card.
        """
        from attnbench.models.hstu_ranking.graphs import StepGraphs
        from attnbench.models.hstu_ranking.host_hits import HostHits

        self.case, self.model, self.attention = case, inputs.model, attention
        self.cache: Any = None
        self.found, self.choice = 0, None
        if cached:
            pages = SETS * case.batch * max(1, -(-case.history // case.page_size))
            on_host = case.cache == "host-hit"
            reload: Any = case.on_host_hit == "reload"
            if on_host and case.on_host_hit == "auto":
                reload = self.choice = HostHits.measured(
                    self.model,
                    StepGraphs(self.model, attention=attention, capture=capture)
                    if graph
                    else lambda requests: inputs.model(requests, attention=attention),
                    page_size=case.page_size,
                )
            self.cache = self.model.make_cache(
                pages=pages, page_size=case.page_size, host_pages=pages if on_host else 0, reload=reload
            )
            taken = reload if self.choice is None else self.choice([case.found] * case.batch)
            self.found = case.found if taken or not on_host else 0
        self.graphs = StepGraphs(self.model, cache=self.cache, attention=attention, capture=capture) if graph else None
        self.mark: Mark = nullcontext
        self.out: Tensor | None = None
        self.parts: _Parts | None = None
        self.load(inputs)

    def load(self, inputs: ServingInputs) -> None:
        """Take other requests; what a step is to find of them is computed once, with this row's own attention."""
        self.requests, self.parts = inputs.requests(), None
        self.users = [one.user for one in self.requests]
        if self.cache is None:
            return
        before = [one for one in inputs.before() if max(self.cache.held(one.user)) < self.case.found]
        if before:
            self.model(before, cache=self.cache, attention=self.attention)
        self.reset()
        self.prove()

    def reset(self) -> None:
        """Bring the cache to where the case has it: only bookkeeping, and where it must be a wait for transfers."""
        for user in self.users:
            self.cache.truncate(user, self.case.found)
            if self.case.cache == "host-hit":
                self.cache.evict(user)

    def prove(self) -> None:
        """See that the cache is as the case says.

        Raises:
            AttnbenchError: another number of tokens is cached, or elsewhere.
        """
        found = self.case.found
        wanted = (0, found) if self.case.cache == "host-hit" else (found, 0)
        for user in self.users:
            if (held := self.cache.held(user)) != wanted:
                raise AttnbenchError(
                    refusal(
                        self.case.id,
                        "cached",
                        "{} + {}".format(*held),
                        f"tokens on the device and in host memory are not what {self.case.cache} means",
                        "{} + {}".format(*wanted),
                    )
                )

    def forward(self) -> None:
        """One step: everything from the requests to the logits."""
        self.out = None
        model, cache, requests = self.model, self.cache, self.requests
        with self.mark("requests"):
            histories = model.histories(requests, cache)
        if cache is None:
            self.out = self.run(histories, model.uncached(requests, histories))
            return
        with ExitStack() as closing:
            with self.mark("allocate"):
                targets = [len(one.candidates) for one in requests]
                step = closing.enter_context(cache.step(self.users, histories, targets))
            if step.cached != [self.found] * self.case.batch:
                raise AttnbenchError(
                    refusal(
                        self.case.id,
                        "cached",
                        step.cached,
                        "is not what the step was to find",
                        f"{self.found} of each user",
                    )
                )
            self.out = self.run(histories, step)

    def run(self, histories: Sequence[np.ndarray], step: CacheStep) -> Tensor:
        """The device's part of a step, started."""
        if self.graphs is not None:
            with self.mark("graph"):
                return self.graphs.run(self.requests, histories, step)
        with self.mark("strip"):
            prepared = self.model.prepare(self.requests, histories, step, self.attention, self.cache)
        return self.model.run(prepared, self.mark)

    def marked(self, mark: Mark) -> None:
        """Mark the parts of later steps by a profiler's ranges."""
        self.mark = mark

    def outputs(self) -> Mapping[str, Tensor]:
        """Logits of the last step.

        Raises:
            WorkerError: there was none.
        """
        if self.out is None:
            raise WorkerError("launch: outputs were asked for before forward")
        return {"out": self.out}

    def launch(self) -> Launch:
        """What the harness calls."""
        from attnbench.workloads.hstu_serving.work import work

        return Launch(
            forward=self.forward,
            outputs=self.outputs,
            reload=self.load,
            reset=None if self.cache is None else self.reset,
            phases=self.phases(),
            capturable=False,
            marked=self.marked,
            executed_flops=work(self.case, self.found).flops if self.found != self.case.found else None,
            counters=self.counters(),
            notes=self.notes(),
        )

    def notes(self) -> tuple[str, ...]:
        """The model in words, and what was chosen."""
        if self.choice is None:
            return (self.size(),)
        return self.size(), f"on host hit: {self.choice.words()}; {'reload' if self.found else 'recompute'} was chosen"

    def size(self) -> str:
        """The model in words."""
        config = self.case.config
        words = (
            f"model {config.name}: {config.layers} layers, hidden {config.hidden}, {config.heads} heads of "
            f"{config.dim} dims"
        )
        return f"{words}; `bench` cut down for a CPU" if config.name == "small" else words

    def counters(self) -> dict[str, float]:
        """What one step serves, finds and holds."""
        case = self.case
        held, on_host = self.found * case.batch, case.cache == "host-hit"
        history = case.history * case.batch
        pools = () if self.cache is None else (("pool_mb", self.cache.pool), ("host_pool_mb", self.cache.host))
        return {
            "requests": case.batch,
            "layers": case.config.layers,
            "tokens": history + case.num_candidates * case.batch,
            "hit_tokens": 0 if on_host else held,
            "host_hit_tokens": held if on_host else 0,
            "missed_tokens": history - held,
            **{name: pool.numel() * pool.element_size() / MIB for name, pool in pools if pool.numel()},
        }

    # ── phases ─────────────────────────────────────────────────────────────────────────────────────

    def phases(self) -> dict[str, Callable[[], Any]]:
        """Parts of a step, in order; projection, append, attention and output are of one layer."""
        cached: dict[str, Callable[[], Any]] = (
            {}
            if self.cache is None
            else {"lookup": lambda: self.part.lookup(), "allocate": lambda: self.part.allocate()}
        )
        append: dict[str, Callable[[], Any]] = {} if self.cache is None else {"append": lambda: self.part.append()}
        return {
            **cached,
            "strip": lambda: self.part.strip(),
            "embedding": lambda: self.part.embedding(),
            "projection": lambda: self.part.projection(),
            **append,
            "attention": lambda: self.part.attend(),
            "output": lambda: self.part.output(),
            "head": lambda: self.part.head(),
        }

    @property
    def part(self) -> _Parts:
        """What phases work on: made with the first of them for these requests."""
        if self.parts is None:
            self.parts = _Parts(self)
        return self.parts


class _Parts:
    """A step taken apart: each part can be called again, and leaves the cache as it finds it."""

    def __init__(self, session: ServingSession) -> None:
        self.session, self.model, self.cache = session, session.model, session.cache
        self.requests = session.requests
        self.targets = [len(one.candidates) for one in self.requests]
        self.histories = self.model.histories(self.requests, self.cache)
        if self.cache is None:
            self.step = self.model.uncached(self.requests, self.histories)
        else:
            self.step = self.cache.allocate(session.users, self.histories, self.targets, self.lookup())
            # Its pages go back to where the next step of these users takes them from: nobody else takes any.
            self.cache.abort(self.step)
        self.prepared: Prepared = self.strip()
        self.layer = self.model.layers[0]
        self.x = self.embedding()
        self.u, self.q, self.k, self.v = self.projection()
        self.append()
        self.a = self.attend()
        if session.graphs is not None and session.graphs.capture:
            self._capture()

    def _capture(self) -> None:
        """Make graphs of the device's parts: launched one by one, the host would be late for them.

        The tensors that parts hand on stay those they were captured with.
        """
        from attnbench.models.hstu_ranking.graphs import captured

        append = [] if self.cache is None else ["append"]
        for name in ("embedding", "projection", *append, "attend", "output", "head"):
            setattr(self, name, captured(getattr(self, name)))

    def lookup(self) -> Any:
        return self.cache.lookup(self.session.users, self.histories)

    def allocate(self) -> None:
        found = [self.session.found if one.user in self.cache.users else 0 for one in self.requests]
        self.cache.abort(self.cache.allocate(self.session.users, self.histories, self.targets, found))

    def strip(self) -> Any:
        histories = self.model.histories(self.requests, self.cache)
        return self.model.prepare(self.requests, histories, self.step, self.session.attention, self.cache)

    def embedding(self) -> Tensor:
        return self._call(self.model.tokens, self.prepared.rows, self.model.operations)

    def projection(self) -> Any:
        return self._call(self.layer.project, self.x, self.model.operations)

    def append(self) -> None:
        self._call(self.prepared.append, 0, self.k, self.v)

    def attend(self) -> Tensor:
        return self._call(self.prepared.attend, 0, self.q, self.k, self.v)

    def output(self) -> Tensor:
        return self._call(self.layer.output, self.x, self.u, self.a, self.model.operations, self.prepared.count)

    def head(self) -> Tensor:
        return self._call(self.model.towers, self.x, self.prepared.rows.candidates, self.model.operations)

    def _call(self, part: Callable[..., Any], *given: Any) -> Any:
        import torch

        with torch.no_grad():
            return part(*given)
