"""Default model, users and batching of a load.  Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.errors import unknown
from attnbench.models.hstu_ranking.config import ModelConfig, config_of

WHO = "load"


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Defaults for loads of one model."""

    model: str
    users: int
    candidates: int
    most_items: int | None = None
    "limit of a drawn history; None: none, even above the model's limit"
    max_batch: int
    max_wait_ms: float
    rates: tuple[float, ...]
    duration_s: float
    slos_ms: tuple[float, ...] = (50.0, 100.0)
    pool_share: float = 0.5
    "share of the pages that all users need, so that the cache has something to evict"
    page_size: int = 64

    @property
    def config(self) -> ModelConfig:
        """Configuration of the model."""
        return config_of(self.model)


PRESETS = {
    one.model: one
    for one in (
        Preset(
            model="bench",
            users=200,
            candidates=256,
            max_batch=8,
            max_wait_ms=2.0,
            rates=(100.0, 200.0, 400.0),
            duration_s=10.0,
        ),
        Preset(
            model="kuairand",
            users=1000,
            candidates=100,
            max_batch=16,
            max_wait_ms=2.0,
            rates=(200.0, 500.0, 1000.0),
            duration_s=10.0,
        ),
        # MLPerf's limit is 80 ms and its reference batches 10 requests; its model allows no cache.
        Preset(
            model="dlrm-v3",
            users=512,
            candidates=2048,
            max_batch=10,
            max_wait_ms=5.0,
            rates=(200.0, 400.0, 600.0),
            duration_s=10.0,
            slos_ms=(80.0,),
        ),
        Preset(
            model="small",
            users=16,
            candidates=64,
            most_items=256,
            max_batch=4,
            max_wait_ms=2.0,
            rates=(10.0, 20.0, 40.0),
            duration_s=5.0,
        ),
        Preset(
            model="tiny",
            users=20,
            candidates=10,
            max_batch=4,
            max_wait_ms=2.0,
            rates=(50.0,),
            duration_s=5.0,
            page_size=32,
        ),
    )
}


def preset_of(name: str | None, *, on_gpu: bool) -> Preset:
    """A preset by name; None: `bench` on a GPU, `small` on a CPU.

    Raises:
        UsageError: no preset has that name.
    """
    name = name or ("bench" if on_gpu else "small")
    if name not in PRESETS:
        raise unknown(WHO, "--config", name, PRESETS)
    return PRESETS[name]
