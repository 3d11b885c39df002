"""The participants of a race: the configurations that a backend declares for a case, and its own default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from attnbench.backends.base import Backend
from attnbench.backends.describe import Described
from attnbench.backends.registry import split_selectors
from attnbench.errors import UsageError, refusal, unknown
from attnbench.workloads.base import Case, load_workload

LISTED = 40
"Maximum of configurations listed in a message if a wildcard matches none."


def find_backend(name: str, known: Mapping[str, Backend], who: str) -> Backend:
    """Return the backend to tune.

    Raises:
        UsageError: there is no backend of that name, or it has no configurations.
    """
    bare = name.partition("[")[0]
    if bare != name and bare in known:
        raise UsageError(
            refusal(
                who,
                "BACKEND",
                name,
                "names one configuration already",
                bare,
                f"{who} {bare} --configs {name[len(bare) + 1 :].rstrip(']')}",
            )
        )
    if name not in known:
        raise unknown(who, "BACKEND", name, with_a_space(known) or known)
    if not _has_space(known[name]):
        others = ", ".join(with_a_space(known)) or "none is installed"
        raise UsageError(
            refusal(who, "BACKEND", name, "has no configurations to choose from", f"one that has: {others}")
        )
    return known[name]


def references_of(
    texts: Sequence[str] | None, backend: Backend, known: Mapping[str, Backend], who: str
) -> tuple[str, ...]:
    """Return the backends to show beside the pick: the requested ones, none, or the backend's own list.

    Raises:
        UsageError: there is no backend of that name, or it belongs to another workload.
    """
    if texts is None:
        return backend.references
    names = tuple(dict.fromkeys(word for text in texts for word in split_selectors(text)))
    if not names:
        raise UsageError(refusal(who, "--reference", ",".join(texts), "names nothing", "names of backends, or none"))
    if names == ("none",):
        return ()
    for name in names:
        bare = name.partition("[")[0]
        if bare not in known:
            raise unknown(who, "--reference", name, known)
        if known[bare].workload != backend.workload:
            raise UsageError(
                refusal(
                    who,
                    "--reference",
                    name,
                    f"is of the workload {known[bare].workload}",
                    f"one of {backend.workload}, as {backend.name} is",
                )
            )
    return names


def with_a_space(known: Mapping[str, Backend]) -> list[str]:
    """Return the names of the backends that have configurations for their workload's default case."""
    return sorted(name for name, backend in known.items() if _has_space(backend))


def space(backend: Backend, case: Case, patterns: Sequence[str], who: str) -> dict[str, Mapping[str, Any]]:
    """Return the configurations of a backend for a case, by selector, the default first.

    Args:
        backend: backend with configurations.
        case: case of its workload.
        patterns: short forms or wildcards (``m128*``) that restrict the space; empty: all of it.  A short form may be
            one that the backend parses without listing it.
        who: subject of error messages.

    Returns:
        ``{"name": {}, "name[short]": values, …}``.

    Raises:
        UsageError: there is no configuration for this case, or a pattern matches none.
    """
    values = {config.short: config.values for config in backend.configs(case)}
    if not values:
        raise UsageError(refusal(backend.name, "case", case.id, "has no configuration", "another shape"))
    wanted = (
        list(values)
        if not patterns
        else [short for short in values if any(fnmatchcase(short, pattern) for pattern in patterns)]
    )
    for pattern in patterns:
        if any(fnmatchcase(short, pattern) for short in wanted):
            continue
        if any(letter in pattern for letter in "*?["):
            if len(values) <= LISTED:
                raise unknown(who, "--configs", pattern, values)
            near = get_close_matches(pattern, values, n=1, cutoff=0.0)[0]
            raise UsageError(
                refusal(
                    who,
                    "--configs",
                    pattern,
                    f"means none of the {len(values)} there are",
                    f"see `attnbench list configs {backend.name}`, which takes the shape too",
                    f"did you mean {near}?",
                )
            )
        # A backend may parse more configurations than it lists, and raises for one that it cannot parse.
        config = backend.config_of(pattern, case)
        values[config.short] = config.values
        wanted.append(config.short)
    return {backend.name: {}} | {f"{backend.name}[{short}]": dict(values[short]) for short in dict.fromkeys(wanted)}


def short_of(selector: str) -> str:
    """Return the short form of a selector; ``default`` for the bare name."""
    return selector.partition("[")[2].removesuffix("]") or "default"


def _has_space(backend: Backend) -> bool:
    if isinstance(backend, Described):
        return any(True for _ in backend.configs(None))
    try:
        case = load_workload(backend.workload).case({})
    except UsageError:  # an entry point that does not import belongs to no workload
        return False
    return any(True for _ in backend.configs(case))
