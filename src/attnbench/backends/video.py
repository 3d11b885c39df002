"""``video[NAME]``: a denoising step of a video model with any backend for attention, dense or sparse, in its layers.

`--backends NAME` selects that row, as do the names in the seed documents.  The model's own code calls one function for
the attention of every layer (`models/video/attention.py`).  A backend with such a function (`Backend.attend`) receives
the projections in place; for the others they are copied into a session's inputs, and the result out of it.  Without a
name, torch chooses the attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend, Budget, Config, Launch, Machine, module_exists
from attnbench.backends.registry import SEED_NAMES, all_backends
from attnbench.dtypes import DTYPES
from attnbench.errors import Unavailable, Unsupported, UsageError, refusal, unknown

if TYPE_CHECKING:
    from attnbench.workloads.video.case import VideoCase
    from attnbench.workloads.video.inputs import VideoInputs

DEFAULT = "sdpa"
GIB = 2**30
VAE_BYTES = 6 * GIB
"Memory to decode tile by tile, at any size of the video."


class Video(Backend["VideoCase", "VideoInputs"]):
    """The step is diffusers' model in our own loop, with another backend's attention."""

    name = "video"
    workload = "video"
    variant = "step"
    title = "Denoising step, any attention backend in it"
    install = "pip install 'attnbench[video]'"
    distribution = "diffusers"
    devices = ("cpu", "cuda")
    tested = "NVIDIA H200, torch 2.11"
    compiles = True
    carries = ("attention", "sparse")
    default = DEFAULT

    @property
    def inner(self) -> Backend:
        """The backend whose attention is used."""
        if self.config is None:
            return self._known()[DEFAULT]
        found = self._known()[self.config.values["attention"]]
        config = self.config.values["config"]
        return found if config is None else type(found)(config)

    def configs(self, case: VideoCase) -> Iterable[Config]:
        """Return every backend of the workloads `attention` and `sparse`."""
        return [
            Config(name, {"attention": name, "config": None})
            for name, one in self._known().items()
            if one.workload in self.carries
        ]

    def _known(self) -> Mapping[str, Backend]:
        return self.others or all_backends()

    def config_of(self, short: str, case: VideoCase | None) -> Config:
        """Accept a backend's name, a seed document's name for one, or ``NAME:short-form`` for a launch configuration.

        Raises:
            UsageError: no backend has that name.
        """
        name, _, config = short.partition(":")
        name, known = SEED_NAMES.get(name, name), self._known()
        names = [one for one, backend in known.items() if backend.workload in self.carries]
        if name not in names:
            raise unknown(self.name, "attention", name, names)
        found = known[name].config_of(config, problem_of(known[name], case)) if config and case is not None else None
        return Config(f"{name}:{config}" if config else name, {"attention": name, "config": found})

    def probe(self) -> None:
        """Check that diffusers and the backend's library are installed.

        Raises:
            Unavailable: one is not installed.
        """
        if not module_exists("diffusers"):
            raise Unavailable(f"{self.name}: module=diffusers is not installed; {self.install}")
        self.inner.probe()

    def check(self, case: VideoCase, machine: Machine) -> None:
        """Refuse cases that the backend does not support or that do not fit in memory.

        Raises:
            Unsupported: naming the field, its value and what is accepted.
        """
        inner, needed = self.inner, memory_bytes(case)
        inner.check(problem_of(inner, case), machine)
        if machine.memory_bytes is None or needed <= machine.memory_bytes:
            return
        fewer = (replace(case, frames=frames) for frames in range(case.frames - 4, 0, -4))
        fits = next((f"at most {one.frames}" for one in fewer if memory_bytes(one) <= machine.memory_bytes), None)
        room = f"{needed / GIB:.0f} GiB of memory, {machine.memory_bytes / GIB:.0f} GiB are there"
        wrong = f"at {case.height}x{case.width} takes about {room}"
        raise Unsupported(refusal(self.name, "frames", case.frames, wrong, fits or "a smaller height and width"))

    def check_together(self, case: VideoCase, workloads: Set[str]) -> None:
        """Refuse a map, or dense first steps, if all steps of all rows are dense.

        Raises:
            UsageError: naming the field.
        """
        if "sparse" in workloads:
            return
        for name, value in (("dense-steps", case.dense_steps), ("density", case.density)):
            if value:
                none = 0 if name == "dense-steps" else "none"
                wrong = "changes nothing: no row has a block map"
                raise UsageError(refusal(self.name, name, value, wrong, f"{none}, or a row of `sparse`"))

    def budget(self, case: VideoCase) -> Budget:
        """Return the backend's budget for a layer's attention, whose data is the model's: of no kind of inputs."""
        return replace(self.inner.budget(problem_of(self.inner, case)), by_input={})

    def variant_of(self, case: VideoCase) -> str:
        """For a sparse row, return the variant of a model with its map in all layers."""
        inner = self.inner
        if inner.workload == "attention":
            return self.variant
        # The workload `sparse` also has rows that compute all blocks.
        variants = {"dense": self.variant, "chosen": "chosen-step"}
        return variants.get(inner.variant_of(problem_of(inner, case)), "sparse-step")

    @contextmanager
    def session(self, case: VideoCase, inputs: VideoInputs) -> Iterator[Launch]:
        """Use a transformer with its own modules that shares the weights."""
        from attnbench.backends.video_attention import attention_of
        from attnbench.backends.video_session import VideoSession

        inner = self.inner
        with attention_of(inner, problem_of(inner, case), inputs.latents.device) as attention:
            session = VideoSession(case, inputs, attention, name=self.config.short if self.config else DEFAULT)
            yield session.launch(self._kept(case))

    def _kept(self, case: VideoCase) -> dict[str, float]:
        """For a row with a given map, return the share of the visible pairs that it keeps."""
        from attnbench.workloads.sparse.work import density

        if self.variant_of(case) != "sparse-step":
            return {}
        share = density(case.sparse)
        return {"density": share, "actual_sparsity": 1 - share}


def problem_of(inner: Backend, case: VideoCase) -> Any:
    """Return the attention of one layer as a case of a backend's own workload.

    Raises:
        Unsupported: no such case exists: the block map does not fit the tokens.
    """
    if inner.workload == "attention":
        return case.attention
    try:
        return case.sparse
    except UsageError as why:
        raise Unsupported(str(why)) from None


def memory_bytes(case: VideoCase) -> int:
    """Estimate the memory of a whole generation: weights, activations of one layer, and the decoder."""
    from attnbench.workloads.video.work import weights

    model: Any = case.config
    columns = 10 * model.width_of_tokens + 2 * model.feed_forward
    vae = 0 if model.name.startswith("tiny") else VAE_BYTES
    return DTYPES[case.dtype].bytes * (weights(model) + case.batch * case.tokens * columns) + vae
