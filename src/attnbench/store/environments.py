"""The machine of a record: which environment of the run it is, and its name in words."""

from __future__ import annotations

from attnbench.record import Environment, Record, Run

SHORTEST = 4
"""Letters of a GPU's UUID that name it in a table."""


def environment_of(run: Run, record: Record) -> Environment | None:
    """The environment that `record` was measured in."""
    place = record.environment
    return run.environments[place] if place is not None and 0 <= place < len(run.environments) else None


def device_name(environment: Environment | None) -> str | None:
    """The GPU, or the CPU where none was used."""
    return None if environment is None else environment.gpu or environment.cpu


def gpu_of(run: Run, record: Record) -> str | None:
    """The UUID of the GPU that `record` was measured on."""
    environment = environment_of(run, record)
    return None if environment is None else environment.gpu_uuid


def gpu_names(run: Run) -> dict[str, str]:
    """What tables call each GPU of a run, by UUID: its first letters, as many as tell them apart; empty of one GPU."""
    uuids = list(dict.fromkeys(one.gpu_uuid for one in run.environments if one.gpu_uuid is not None))
    if len(uuids) < 2:
        return {}
    bare, length = [uuid.removeprefix("GPU-") for uuid in uuids], SHORTEST
    while len({name[:length] for name in bare}) < len(uuids):
        length += 1
    return {uuid: name[:length] for uuid, name in zip(uuids, bare, strict=True)}


def gpu_name(run: Run, record: Record) -> str | None:
    """The name of the GPU of `record` among several of the run."""
    return gpu_names(run).get(gpu_of(run, record) or "")


def machine_words(environment: Environment) -> list[str]:
    """The machine and the versions that a reader of a table must know."""
    words = [name for name in (device_name(environment),) if name]
    versions = (("torch", environment.torch), ("triton", environment.triton))
    words += [f"{name} {version}" for name, version in versions if version]
    if environment.gpu:
        versions = (("CUDA", environment.cuda), ("driver", environment.driver))
        words += [f"{name} {version}" for name, version in versions if version]
    return words
