"""A serving step, or a series, as a session: the model, a cache that is restored before each sample, and phases.

Steps run launch by launch, or each as one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import InPlace, Launch
from attnbench.backends.serving_steps import StepTimes
from attnbench.errors import AttnbenchError, WorkerError, refusal
from attnbench.workloads.hstu_serving.case import GROWTH, POOL, SERIES

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.kernels.hstu.arguments import Parts
    from attnbench.models.hstu_ranking.attention import AttentionMaker
    from attnbench.models.hstu_ranking.host_hits import HostHits
    from attnbench.models.hstu_ranking.model import Mark, Prepared
    from attnbench.models.hstu_ranking.request import Request
    from attnbench.workloads.hstu_serving.case import ServingCase
    from attnbench.workloads.hstu_serving.inputs import ServingInputs
    from attnbench.workloads.hstu_serving.work import Found

MIB = 2**20
SETS = 2
"Sets of requests that fit at the same time: the two with which a launch is checked."
REPEATS = 6
"Repetitions of a series after which cache hits must have become stable; two or three are enough."


class ServingSession:
    """A model that serves one batch repeatedly, with the cache in the case's state before each step."""

    def __init__(
        self,
        case: ServingCase,
        inputs: ServingInputs,
        attention: str | AttentionMaker,
        *,
        cached: bool,
        graph: bool = False,
        exact: bool = False,
        capture: bool | None = None,
    ) -> None:
        """Create a session.

        Args:
            case: the problem.
            inputs: model and requests.
            attention: of the steps.
            cached: whether there is a cache.
            graph: whether a step uses the fixed buffers of a CUDA graph.
            exact: whether a graph serves only steps of the same lengths.
            capture: whether to capture it; None: on a GPU.
        """
        self.case, self.model, self.attention = case, inputs.model, attention
        self.graph, self.exact, self.capture = graph, exact, capture
        self.cache: Any = None
        self.choice = self._measured() if cached and case.on_host_hit == "auto" else None
        self.found: Found = [[0] * len(step) for step in case.steps]
        if cached:
            self.cache = self._new_cache()
            reload = self._chosen() if self.choice else case.on_host_hit == "reload"
            if reload or case.cache != "host-hit":
                self.found = [[case.found_of(visit) for visit in step] for step in case.steps]
        self.graphs = self._new_graphs()
        self.pools: dict[tuple[int, ...], tuple[Any, Any]] = {}
        "for a series: cache and graphs of each set of users"
        self.mark: Mark = nullcontext
        self.outs: list[Tensor] = []
        self.evicted = 0
        "number of users, by a series"
        self.parts: _Parts | None = None
        self.load(inputs)

    def _chosen(self) -> bool:
        """Return what the cache will decide for the step of the case."""
        from attnbench.models.paged_cache import Ahead

        case = self.case
        rows = case.history - case.found + case.num_candidates
        return self.choice is not None and self.choice([Ahead(0, case.found, rows)] * case.batch)

    def _measured(self) -> HostHits:
        """Measure reloading and recomputing, in the way that steps are run."""
        from attnbench.models.hstu_ranking.host_hits import HostHits

        def score(requests: Sequence[Request]) -> Tensor:
            return self.model.forward(requests, attention=self.attention)

        return HostHits.measured(self.model, self._new_graphs() if self.graph else score, page_size=self.case.page_size)

    def _new_cache(self) -> Any:
        case = self.case
        pages = case.pool_pages if case.cache == POOL else SETS * max(case.batch, case.needed_pages)
        host_pages = pages if case.cache == "host-hit" else 0
        reload = self.choice or case.on_host_hit == "reload"
        return self.model.make_cache(pages=pages, page_size=case.page_size, host_pages=host_pages, reload=reload)

    def _new_graphs(self) -> Any:
        from attnbench.models.hstu_ranking.graphs import StepGraphs

        if not self.graph:
            return None
        how: dict[str, Any] = {"attention": self.attention, "exact": self.exact, "capture": self.capture}
        return StepGraphs(self.model, cache=self.cache, **how)

    def load(self, inputs: ServingInputs) -> None:
        """Load other requests; tokens that a step should find cached are computed once, with this row's attention."""
        self.steps, self.parts = inputs.steps(), None
        self.users = list(inputs.users)
        if self.cache is None:
            return
        if self.case.cache == POOL:
            self._take_pool(inputs.users)
            return
        before = [one for one in inputs.before() if max(self.cache.held(one.user)) < self.case.found]
        if before:
            self.model(before, cache=self.cache, attention=self.attention)
        self.reset()
        self.prove()

    def _take_pool(self, users: tuple[int, ...]) -> None:
        """Select the pool of these users, filling it if it is new; each set of users has its own."""
        if users in self.pools:
            self.cache, self.graphs = self.pools[users]
            self.reset()
            return
        if self.pools:
            self.cache = self._new_cache()
            self.graphs = self._new_graphs()
        while len(self.pools) >= SETS:
            del self.pools[next(iter(self.pools))]
        self.pools[users] = self.cache, self.graphs
        self._repeat()

    def _repeat(self) -> None:
        """Repeat the series until its cache hits equal those of the previous repetition.

        Raises:
            AttnbenchError: they never do.
        """
        for _ in range(REPEATS):
            counts = self.cache.counts
            before, evicted = self.found, counts.evicted_users
            self.reset()
            self.found = [self.step(requests)[1] for requests in self.steps]
            self.evicted = counts.evicted_users - evicted
            if self.found == before:
                self.reset()
                return
        raise AttnbenchError(refusal(self.case.id, "found", self.found, "was not found the time before", str(before)))

    def reset(self) -> None:
        """Restore the cache to the state of the case: bookkeeping only, plus waiting for transfers if necessary."""
        for user in self.users:
            self.cache.truncate(user, self.case.found)
            if self.case.cache == "host-hit":
                self.cache.evict(user)

    def prove(self) -> None:
        """Verify that the cache is in the state of the case.

        Raises:
            AttnbenchError: another number of tokens is cached, or in other places.
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
        """Run all steps: everything from the requests to the logits."""
        self.outs = []
        for requests, wanted in zip(self.steps, self.found, strict=True):
            out, _ = self.step(requests, wanted)
            # The next step of a CUDA graph writes its logits to the same memory.
            self.outs.append(out.clone() if self.graphs is not None and len(self.steps) > 1 else out)

    def step(self, requests: Sequence[Request], wanted: Sequence[int] | None = None) -> tuple[Tensor, Sequence[int]]:
        """Run one step; return its logits, and the number of tokens of each history that it found cached.

        Raises:
            AttnbenchError: the numbers are not those expected.
        """
        from attnbench.models.hstu_ranking.model import PREPROCESSING

        model, cache = self.model, self.cache
        with ExitStack() as closing:
            with self.mark(PREPROCESSING):
                with self.mark("requests"):
                    histories = model.histories(requests, cache)
                if cache is None:
                    step = model.uncached(requests, histories)
                else:
                    with self.mark("allocate"):
                        targets = [len(one.candidates) for one in requests]
                        step = closing.enter_context(cache.step([one.user for one in requests], histories, targets))
                    if wanted is not None and step.cached != wanted:
                        raise AttnbenchError(
                            refusal(
                                self.case.id, "cached", step.cached, "is not what the step was to find", str(wanted)
                            )
                        )
                if self.graphs is None:
                    with self.mark("strip"):
                        prepared = model.prepare(requests, histories, step, self.attention, cache)
            if self.graphs is None:
                return model.run(prepared, self.mark), step.cached
            with self.mark("graph"):
                return self.graphs.run(requests, histories, step), step.cached

    def wait(self) -> None:
        """Wait until the device has finished all launches."""
        import torch

        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def marked(self, mark: Mark) -> None:
        """Mark the parts of later steps with a profiler's ranges."""
        self.mark = mark

    def outputs(self) -> Mapping[str, Tensor]:
        """Return the logits of the last call, step after step.

        Raises:
            WorkerError: there was no call.
        """
        import torch

        if not self.outs:
            raise WorkerError("launch: outputs were asked for before forward")
        return {"out": self.outs[0] if len(self.outs) == 1 else torch.cat(self.outs)}

    def launch(self) -> Launch:
        """Return the launch for the harness."""
        from attnbench.workloads.hstu_serving.work import work

        whole = work(self.case).flops
        return Launch(
            forward=self.forward,
            outputs=self.outputs,
            reload=self.load,
            reset=None if self.cache is None else self.reset,
            phases=self.phases(),
            capturable=False,
            marked=self.marked,
            executed_flops=executed if (executed := work(self.case, self.found).flops) != whole else None,
            counters=self.counters(),
            notes=self.notes(),
        )

    def notes(self) -> tuple[str, ...]:
        """Describe the model, what was chosen, and the series."""
        case, notes = self.case, [self.size()]
        if self.choice is not None:
            chosen = "reload" if any(map(any, self.found)) else "recompute"
            notes.append(f"on host hit: {self.choice.words()}; {chosen} was chosen")
        if case.cache == POOL:
            notes.append(f"times are of {len(case.steps)} steps, of {case.batch} of {case.users} users each")
        if case.cache == GROWTH:
            notes.append(f"times are of {len(case.steps)} steps, each with {case.new_tokens} more tokens of all users")
        return tuple(notes)

    def size(self) -> str:
        """Describe the size of the model."""
        config = self.case.config
        words = (
            f"model {config.name}: {config.layers} layers, hidden {config.hidden}, {config.heads} heads of "
            f"{config.dim} dims"
        )
        return f"{words}; `bench` cut down for a CPU" if config.name == "small" else words

    def counters(self) -> dict[str, float]:
        """Return how many requests and tokens the steps serve, find cached and hold."""
        case, on_host = self.case, self.case.cache == "host-hit"
        requests = sum(map(len, case.steps))
        held = sum(map(sum, self.found))
        history = sum(case.history_of(visit) for step in case.steps for visit in step)
        pools = () if self.cache is None else (("pool_mb", self.cache.pool), ("host_pool_mb", self.cache.host))
        evicted = {"evicted_users": float(self.evicted)} if case.cache == POOL and self.cache is not None else {}
        return {
            "requests": requests,
            "layers": case.config.layers,
            "tokens": history + case.num_candidates * requests,
            "hit_tokens": 0 if on_host else held,
            "host_hit_tokens": held if on_host else 0,
            "missed_tokens": history - held,
            **evicted,
            **{name: pool.numel() * pool.element_size() / MIB for name, pool in pools if pool.numel()},
        }

    # ── phases ─────────────────────────────────────────────────────────────────────────────────────

    def phases(self) -> Mapping[str, Callable[[], Any] | InPlace]:
        """Return the parts of a step, in order; projection, append, attention and output are those of one layer.

        For a series of growing histories these are its steps; other series have none.
        """
        if self.case.cache in SERIES:
            return StepTimes(self).phases() if self.case.cache == GROWTH else {}
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
        """Return what the phases work on, created with the first phase for these requests."""
        if self.parts is None:
            self.parts = _Parts(self)
        return self.parts


class _Parts:
    """The parts of a step: each can be called repeatedly, and leaves the cache unchanged."""

    def __init__(self, session: ServingSession) -> None:
        self.session, self.model, self.cache = session, session.model, session.cache
        (self.requests,) = session.steps
        self.targets = [len(one.candidates) for one in self.requests]
        self.histories = self.model.histories(self.requests, self.cache)
        if self.cache is None:
            self.step = self.model.uncached(self.requests, self.histories)
        else:
            self.step = self.cache.allocate(session.users, self.histories, self.targets, self.lookup())
            # Its pages return to where the next step of these users allocates; no other step allocates meanwhile.
            self.cache.abort(self.step)
        self.prepared: Prepared = self.strip()
        captures = session.graphs is not None and session.graphs.capture
        if captures:
            self.prepared = self.prepared.in_graph(waits=bool(self.step.tickets))
        self.layer = self.model.layers[0]
        self.x = self.embedding()
        self.u, *self.qkv = self.projection()
        self.append()
        self.attended = [_copied(x) for x in self.qkv] if self.prepared.appends_silu else self.qkv
        "after an append that changes queries, keys and values on every call, copies from its first call"
        self.a = self.attend()
        if captures:
            self._capture()

    def _capture(self) -> None:
        """Capture CUDA graphs of the device's parts: with separate launches the host would be late.

        Tensors passed between parts stay those that were captured.
        """
        from attnbench.models.hstu_ranking.graphs import captured

        append = [] if self.cache is None else ["append"]
        for name in ("embedding", "projection", *append, "attend", "output", "head"):
            setattr(self, name, captured(getattr(self, name)))

    def lookup(self) -> Any:
        return self.cache.lookup(self.session.users, self.histories)

    def allocate(self) -> None:
        (wanted,) = self.session.found
        users = self.cache.users
        found = [held if one.user in users else 0 for one, held in zip(self.requests, wanted, strict=True)]
        self.cache.abort(self.cache.allocate(self.session.users, self.histories, self.targets, found))

    def strip(self) -> Any:
        histories = self.model.histories(self.requests, self.cache)
        return self.model.prepare(self.requests, histories, self.step, self.session.attention, self.cache)

    def embedding(self) -> Tensor:
        return self._call(self.model.tokens, self.prepared.rows, self.model.operations)

    def projection(self) -> Any:
        silu = not self.prepared.appends_silu
        return self._call(partial(self.layer.project, silu=silu), self.x, self.model.operations)

    def append(self) -> None:
        self._call(self.prepared.append, 0, *self.qkv)
        self.prepared.join(self.x)

    def attend(self) -> Tensor | Parts:
        return self._call(self.prepared.attend, 0, *self.attended)

    def output(self) -> Tensor:
        return self._call(self.layer.output, self.x, self.u, self.a, self.model.operations, self.prepared.count)

    def head(self) -> Tensor:
        return self._call(self.model.towers, self.x, self.prepared.rows.candidates, self.model.operations)

    def _call(self, part: Callable[..., Any], *given: Any) -> Any:
        import torch

        with torch.no_grad():
            return part(*given)


def _copied(x: Tensor) -> Tensor:
    """Copy a tensor with its strides."""
    import torch

    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
