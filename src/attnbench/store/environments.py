"""Find the environment in which a record was measured, name its machine, and say its inputs."""

from __future__ import annotations

from attnbench.record import Environment, Record, Run

SHORTEST = 4
"""Letters of a GPU's UUID in a table, at least."""


def environment_of(run: Run, record: Record) -> Environment | None:
    """Return the environment in which `record` was measured."""
    place = record.environment
    return run.environments[place] if place is not None and 0 <= place < len(run.environments) else None


def input_of(run: Run, record: Record) -> str | None:
    """Return the values of a record's inputs; None if they are unknown, as in another program's file."""
    return record.input or (run.settings.input if run.plan else None)


def device_name(environment: Environment | None) -> str | None:
    """Return the name of the GPU, or of the CPU if no GPU was used."""
    return None if environment is None else environment.gpu or environment.cpu


def gpu_of(run: Run, record: Record) -> str | None:
    """Return the UUID of the GPU on which `record` was measured."""
    environment = environment_of(run, record)
    return None if environment is None else environment.gpu_uuid


def gpu_names(run: Run) -> dict[str, str]:
    """Return the table names of a run's GPUs by UUID: its first letters, enough to be unique; empty for one GPU."""
    uuids = list(dict.fromkeys(one.gpu_uuid for one in run.environments if one.gpu_uuid is not None))
    if len(uuids) < 2:
        return {}
    bare, length = [uuid.removeprefix("GPU-") for uuid in uuids], SHORTEST
    while len({name[:length] for name in bare}) < len(uuids):
        length += 1
    return {uuid: name[:length] for uuid, name in zip(uuids, bare, strict=True)}


def gpu_name(run: Run, record: Record) -> str | None:
    """Return the name of the GPU of `record`, if the run has several."""
    return gpu_names(run).get(gpu_of(run, record) or "")


def machine_words(environment: Environment) -> list[str]:
    """Return the machine and the versions that belong with a table."""
    words = [name for name in (device_name(environment),) if name]
    versions = (("torch", environment.torch), ("triton", environment.triton))
    words += [f"{name} {version}" for name, version in versions if version]
    if environment.gpu:
        versions = (("CUDA", environment.cuda), ("driver", environment.driver))
        words += [f"{name} {version}" for name, version in versions if version]
    return words
