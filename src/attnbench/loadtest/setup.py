"""Creates what is loaded from the options: the model, its users, its cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.dtypes import DTYPES, torch_dtype
from attnbench.errors import UsageError, out_of_memory, refusal, unknown
from attnbench.loadtest.generator import own_cores
from attnbench.loadtest.presets import Preset
from attnbench.loadtest.replay import FOLLOWING, Replay
from attnbench.loadtest.run import Bench, OnProgress
from attnbench.loadtest.serving import Batching
from attnbench.loadtest.users import Policy, Users, dlrm, kuairand
from attnbench.machine.device import Device
from attnbench.machine.fingerprint import usable_cores
from attnbench.machine.memory import available_memory
from attnbench.store.load_file import RANDOM

if TYPE_CHECKING:
    from attnbench.models.hstu_ranking.model import HstuRanking
    from attnbench.models.paged_cache import Choice, PagedCache

WHO = "load"
ON_GPU, WITHOUT_CACHE, ON_CPU = "paged", "gathered", "reference"
"""Default attention: our kernel over pages; our dense kernel if nothing is cached; plain torch on a CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Options of a load; a preset supplies the rest."""

    preset: Preset
    device: Device
    users: int
    candidates: int
    max_batch: int
    max_wait_ms: float
    duration_s: float
    drain_s: float
    slos_ms: tuple[float, ...]
    page_size: int
    pool_share: float | None = None
    "share of the pages that all users need; None: the preset's, but at least what one user needs"
    pool_pages: int | None = None
    "pages of the cache, whatever all users need; None: set by `pool_share`"
    host_pages: int = 0
    offload_chunk: int = 1
    "least number of new tokens of a user that are copied to host memory at a time"
    on_host_hit: str = "reload"
    "reload, recompute or auto: the faster one here"
    graph: bool = False
    "steps as CUDA graphs"
    cache: bool = True
    attention: str | None = None
    long_history: str = "truncate"
    dtype: str | None = None
    seed: int = 0
    checkpoint: str | None = None
    source: str | None = None
    "folder of prepared files to replay; None: users are drawn"
    only_user: int | None = None
    "of these files; None: all"
    candidates_of: str = FOLLOWING
    "for a replay: following or drawn"

    @property
    def cached(self) -> bool:
        """Whether there is a cache: `dlrm-v3` cannot have one."""
        return self.cache and not self.preset.config.recency

    @property
    def share(self) -> float:
        """The pool's share of the pages that all users need."""
        return self.preset.pool_share if self.pool_share is None else self.pool_share

    @property
    def precision(self) -> str:
        """Precision of weights and activations."""
        return self.dtype or ("bf16" if self.device.on_gpu else "fp32")

    @property
    def attention_name(self) -> str:
        """Name in `models.hstu_ranking.attention`."""
        if self.attention is not None:
            return self.attention
        return ON_CPU if not self.device.on_gpu else ON_GPU if self.cached or self.graph else WITHOUT_CACHE

    def words(self) -> dict[str, Any]:
        """The options as recorded in the result."""
        names = (
            "users",
            "candidates",
            "max_batch",
            "max_wait_ms",
            "duration_s",
            "drain_s",
            "slos_ms",
            "page_size",
            "pool_pages",
            "host_pages",
            "offload_chunk",
            "on_host_hit",
            "graph",
            "long_history",
            "seed",
        )
        found: dict[str, Any] = {name: getattr(self, name) for name in names}
        found |= {
            "pool_share": self.share,
            "cache": self.cached,
            "attention": self.attention_name,
            "dtype": self.precision,
            "slos_ms": list(self.slos_ms),
            "weights": RANDOM if self.checkpoint is None else Path(self.checkpoint).name,
        }
        return found | ({} if self.source is None else {"candidates_of": self.candidates_of})


def make_users(options: Options) -> Users | Replay:
    """Create the users of a preset, drawn by seed, or those of prepared files.

    Raises:
        UsageError: a file cannot be read, or there is not enough memory.
    """
    config, policy = options.preset.config, Policy(options.preset.config, options.long_history)
    try:
        if options.source is not None:
            return Replay(
                Path(options.source),
                config,
                candidates=options.candidates,
                policy=policy,
                only_user=options.only_user,
                kind=options.candidates_of,
                seed=options.seed,
            )
        if config.recency:
            return dlrm(config, users=options.users, candidates=options.candidates, seed=options.seed, policy=policy)
        return kuairand(
            config,
            users=options.users,
            candidates=options.candidates,
            most_items=options.preset.most_items,
            seed=options.seed,
            policy=policy,
        )
    except MemoryError:
        raise UsageError(
            refusal(WHO, "--users", options.users, "take more host memory than there is", "fewer users")
        ) from None


def make_model(options: Options) -> HstuRanking:
    """Create the model with its weights.

    Raises:
        UsageError: attention, precision or checkpoint are invalid, or there is not enough memory.
    """
    from attnbench.models.hstu_ranking.attention import ATTENTIONS
    from attnbench.models.hstu_ranking.checkpoint import load
    from attnbench.models.hstu_ranking.model import HstuRanking

    if options.attention_name not in ATTENTIONS:
        raise unknown(WHO, "--attention", options.attention_name, ATTENTIONS)
    if not options.device.on_gpu:
        _check_memory(options)
    try:
        model = HstuRanking(
            options.preset.config, seed=0, dtype=torch_dtype(options.precision), device=str(options.device)
        )
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        wrong = f"takes more memory than there is: its tables alone are {table_bytes(options) / 1e9:.1f} GB"
        raise UsageError(refusal(WHO, "--config", options.preset.model, wrong, "a smaller model")) from None
    if options.checkpoint is not None:
        load(model, Path(options.checkpoint))
    return model


def check_weights(options: Options) -> None:
    """Refuse a checkpoint that the model could not load, by its header alone, before anything is made.

    Raises:
        UsageError: it is no safetensors file, is cut short, or has another model's weights.
    """
    from attnbench.models.hstu_ranking.checkpoint import check
    from attnbench.models.hstu_ranking.model import HstuRanking

    if options.checkpoint is not None:
        check(HstuRanking(options.preset.config, device="meta"), Path(options.checkpoint))


def _check_memory(options: Options) -> None:
    """Refuse tables that do not fit in host memory: the kernel would kill the process without a message.

    Raises:
        UsageError: with the sizes.
    """
    config = options.preset.config
    wanted, free = table_bytes(options), available_memory()
    if free is not None and wanted > free // 2:
        words = f"has tables of {wanted / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; half of it may be theirs"
        raise UsageError(refusal(WHO, "--config", config.name, words, "a smaller model, or a GPU"))


def table_bytes(options: Options) -> int:
    """Bytes of the model's tables."""
    return options.preset.config.table_numbers * DTYPES[options.precision].bytes


def page_bytes(options: Options) -> int:
    """Return the bytes of a page of keys and values in all layers."""
    config = options.preset.config
    return 2 * config.layers * config.heads * config.dim * options.page_size * DTYPES[options.precision].bytes


def pages_needed(options: Options, users: Users | Replay) -> list[int]:
    """Return the number of pages that the longest history of each user takes."""
    return [-(-tokens // options.page_size) for tokens in users.tokens(options.preset.config)]


def fitted(options: Options, users: Users | Replay) -> Options:
    """Return the options, enlarging a preset's pool that cannot hold the longest history of one user.

    Raises:
        UsageError: the requested pool cannot hold the longest history of a single user.
    """
    if not options.cached:
        return options
    needed = pages_needed(options, users)
    longest = max([1, *needed])
    pages = options.pool_pages or max(1, round(options.share * sum(needed)))
    if pages >= longest:
        return options
    few = f"fewer than the {longest} of one user"
    if options.pool_pages is not None:
        raise UsageError(refusal(WHO, "--pool-pages", pages, f"are {few}", f"{longest} or more"))
    if options.pool_share is not None:
        raise UsageError(
            refusal(WHO, "--pool-share", f"{options.pool_share:g}", f"gives {pages} pages, {few}", "a larger share")
        )
    return replace(options, pool_pages=longest)


def pool_size(options: Options, users: Users | Replay) -> int:
    """Return the number of pages of the pool.

    Raises:
        UsageError: see `fitted`.
    """
    return fitted(options, users).pool_pages or max(1, round(options.share * sum(pages_needed(options, users))))


def make_pool(options: Options, model: HstuRanking, users: Users | Replay) -> PagedCache | None:
    """Create the cache, for a share of the pages that all users need.

    Raises:
        UsageError: see `fitted`, or it takes more memory than there is.
    """
    from attnbench.loadtest.engine import make_cache
    from attnbench.models.hstu_ranking.graphs import StepGraphs
    from attnbench.models.hstu_ranking.host_hits import HostHits

    if not options.cached:
        return None
    pages = pool_size(options, users)
    reload: bool | Choice = options.on_host_hit == "reload"
    if options.host_pages and options.on_host_hit == "auto":
        name = options.attention_name
        alone = StepGraphs(model, attention=name) if options.graph else lambda batch: model(batch, attention=name)
        reload = HostHits.measured(model, alone, page_size=options.page_size)
    return make_cache(
        model,
        pages=pages,
        page_size=options.page_size,
        host_pages=options.host_pages,
        offload_chunk=options.offload_chunk,
        reload=reload,
    )


@contextmanager
def a_core_for_the_generator(device: Device) -> Iterator[None]:
    """Reserve a core for the generator, which busy-waits: two threads on one core would delay each other.

    On a GPU, torch uses one CPU thread: the copies of a step are small, and idle OpenMP threads spin on other cores.
    """
    import torch

    threads = torch.get_num_threads()
    cores = usable_cores() or 1
    # Events and streams belong to the current device; on another one they would not measure this load.
    with own_cores(), torch.cuda.device(str(device)) if device.on_gpu else nullcontext():
        torch.set_num_threads(1 if device.on_gpu else max(1, min(threads, usable_cores() or 1, cores - 1)))
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def make_bench(options: Options, on_progress: OnProgress) -> Bench:
    """Create the system under load, not warmed up yet.

    Args:
        options: of the load.
        on_progress: called with lines of progress.

    Raises:
        UsageError: an option cannot be used; the message is one line.
    """
    from attnbench.loadtest.engine import ModelEngine

    users = make_users(options)
    options = fitted(options, users)
    model = make_model(options)
    engine = ModelEngine(
        model, attention=options.attention_name, cache=make_pool(options, model, users), graph=options.graph
    )
    batching = Batching(max_batch=options.max_batch, max_wait_ms=options.max_wait_ms, drain_s=options.drain_s)
    settings = {"users": len(users.numbers()), "pool_pages": options.pool_pages}
    return Bench(engine, users, batching, options.slos_ms, options.duration_s, options.seed, on_progress, settings)
