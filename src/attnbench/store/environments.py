"""The machine of a record: which environment of the run it is, and its name in words."""

from __future__ import annotations

from attnbench.record import Environment, Record, Run


def environment_of(run: Run, record: Record) -> Environment | None:
    """The environment that `record` was measured in."""
    place = record.environment
    return run.environments[place] if place is not None and 0 <= place < len(run.environments) else None


def device_name(environment: Environment | None) -> str | None:
    """The GPU, or the CPU where none was used."""
    return None if environment is None else environment.gpu or environment.cpu


def machine_words(environment: Environment) -> list[str]:
    """The machine and the versions that a reader of a table must know."""
    words = [name for name in (device_name(environment),) if name]
    versions = (("torch", environment.torch), ("triton", environment.triton))
    words += [f"{name} {version}" for name, version in versions if version]
    if environment.gpu:
        versions = (("CUDA", environment.cuda), ("driver", environment.driver))
        words += [f"{name} {version}" for name, version in versions if version]
    return words
