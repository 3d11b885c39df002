"""Choose the backends of a suite, and their configurations for each of its cases."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.backends.base import Backend
from attnbench.backends.describe import Described
from attnbench.backends.registry import (
    carried,
    has_wildcard,
    is_skipped,
    parse_selector,
    select,
    split_selectors,
    with_configs,
)
from attnbench.errors import NothingToRun, Unavailable, UsageError, refusal, unknown
from attnbench.suites.load import Suite
from attnbench.suites.user_backends import known_backends, user_backends

if TYPE_CHECKING:
    from attnbench.workloads.base import Case


@dataclass(frozen=True, slots=True)
class Chosen:
    """The backends to measure, before wildcards are expanded to the configurations of each case."""

    asked: Mapping[str, tuple[str, ...]]
    "selectors of `select` by the text that names them"
    known: Mapping[str, Backend]
    baseline: str | None
    "as the request or the suite names it"
    dropped: tuple[str, ...]

    def names(self, case: Case) -> tuple[str, ...]:
        """Return the backends and configurations of a case's group."""
        selectors = dict.fromkeys(one for meant in self.asked.values() for one in meant)
        return tuple(name for name in with_configs(selectors, case, self.known) if not is_skipped(name, self.dropped))

    def check(self, cases: Mapping[str, Any]) -> None:
        """Refuse configurations that no case has; for a user's file only its worker knows named ones.

        Raises:
            UsageError: naming the text that asks for them, and the choices.
        """
        for asked, meant in self.asked.items():
            wild = [one for one in meant if has_wildcard(one)]
            if wild and not any(with_configs(wild, case, self.known) for case in cases.values()):
                raise _no_configuration(asked, wild, self.known, next(iter(cases.values())))
            for one in meant:
                name, short = parse_selector(one)
                if short is not None and one not in wild and not isinstance(self.known[name], Described):
                    _check_config(self.known[name], short, cases)

    def check_together(self, case: Case, names: Sequence[str]) -> None:
        """Refuse a case that asks for something that none of its rows does.

        Raises:
            UsageError: naming the field.
        """
        for name in dict.fromkeys(parse_selector(one)[0] for one in names):
            if self.known[name].carries:
                self.known[name].check_together(case, {_kernel(one, self.known).workload for one in names})


def choose(
    suite: Suite,
    kind: str,
    *,
    backends: Sequence[str] = (),
    skip: Sequence[str] = (),
    baseline: str | None = None,
    files: Sequence[str] = (),
) -> Chosen:
    """Return the backends of a suite to measure on a kind of device.

    Backends of a file are added to the selection; so is a requested baseline.  If a wildcard names the configurations
    of a backend, the suite's references are added.

    Args:
        suite: suite whose backends, baseline and references are the defaults.
        kind: cpu or cuda.
        backends: selectors that replace the suite's.
        skip: selectors of backends to omit.
        baseline: replaces the suite's.
        files: paths of --backends files.

    Raises:
        UsageError: a selector is malformed or unknown.
        NothingToRun: no backend remains.
    """
    known = known_backends(files)
    selectors = split_selectors(",".join(backends or suite.backends))
    asked: dict[str, tuple[str, ...]] = {}
    if baseline is not None:
        asked[baseline] = (_one(suite, baseline, known, kind),)
    if any(has_wildcard(parse_selector(part)[1] or "") for selector in selectors for part in selector.split("|")):
        selectors = [*suite.references, *selectors]
    for selector in [*selectors, *user_backends(files)]:
        named = selector.partition("[")[0]
        wild = named == "all" or has_wildcard(named)
        meant = select([first_usable(selector, known, kind)], workload=suite.workload, backends=known)
        runs = [one for one in meant if not wild or kind in _kernel(one, known).devices]
        asked[selector] = tuple(one if _may_expand(one, known, kind) else parse_selector(one)[0] for one in runs)
    left_out = select(skip, backends=known, field="skip") if skip else []
    dropped = tuple(dict.fromkeys(name for one in left_out for name in (one, carried(one, known, suite.workload))))
    if all(is_skipped(one, dropped) for meant in asked.values() for one in meant):
        wrong = f"leaves nothing to run on {kind}"
        raise NothingToRun(refusal(suite.who, "backends", ",".join(selectors), wrong, "see `attnbench list backends`"))
    wanted = baseline or suite.baseline
    return Chosen(asked, known, None if wanted is None else _one(suite, wanted, known, kind), dropped)


def _kernel(selector: str, known: Mapping[str, Backend]) -> Backend:
    """Return the backend whose kernel a row runs: for ``video[sdpa]``, `sdpa`."""
    name, short = parse_selector(selector)
    inner = (short or name).partition(":")[0]
    return known.get(inner, known[name]) if known[name].carries else known[name]


def _may_expand(selector: str, known: Mapping[str, Backend], kind: str) -> bool:
    """Return whether to expand configurations: a backend that cannot run here gets one record with the reason."""
    name, short = parse_selector(selector)
    return not has_wildcard(short or "") or (kind in known[name].devices and _installed(known[name]))


def _no_configuration(asked: str, wild: Sequence[str], known: Mapping[str, Backend], case: Case) -> UsageError:
    """Return the error for a wildcard that matches no configuration of any case; `case` is one of them."""
    names = [parse_selector(one)[0] for one in wild]
    there = {config.short: name for name in names for config in known[name].configs(case)}
    if not there:
        return UsageError(
            refusal(
                "backends",
                "name",
                asked,
                "asks for configurations",
                f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} none",
            )
        )
    near = difflib.get_close_matches(parse_selector(wild[0])[1] or "", there, n=1, cutoff=0.0)[0]
    return UsageError(
        refusal(
            "backends",
            "name",
            asked,
            f"means none of the {len(there)} configurations there are",
            f"see `attnbench list configs {there[near]}`, which takes the shape too",
            f"did you mean {there[near]}[{near}]?",
        )
    )


def _check_config(backend: Backend, short: str, cases: Mapping[str, Any]) -> None:
    """Refuse ``name[short]`` if no case has that configuration."""
    refused: UsageError | None = None
    for case in cases.values():
        try:
            backend.config_of(short, case)
        except UsageError as why:
            refused = refused or why
        else:
            return
    if refused is not None:
        raise refused


def _one(suite: Suite, selector: str, known: Mapping[str, Backend], kind: str) -> str:
    """Return the one backend that a baseline names."""
    usable = first_usable(selector, known, kind, field="baseline")
    meant = select([usable], workload=suite.workload, backends=known, field="baseline")
    if len(meant) != 1 or has_wildcard(meant[0]):
        wrong = "means several configurations" if len(meant) == 1 else f"means {len(meant)} backends"
        raise UsageError(refusal(suite.who, "baseline", selector, wrong, "one backend"))
    return meant[0]


def first_usable(selector: str, known: Mapping[str, Backend], kind: str, *, field: str = "name") -> str:
    """Return the first of the alternatives ``a|b`` that is installed and runs on this kind of device, else the first.

    Raises:
        UsageError: an alternative is not a backend.
    """
    alternatives = selector.split("|")
    if len(alternatives) == 1:
        return selector
    for one in alternatives:
        name = parse_selector(one)[0]
        if name not in known:
            raise unknown("backends", field, name, known)
        if kind in known[name].devices and _installed(known[name]):
            return one
    return alternatives[0]


def _installed(backend: Backend) -> bool:
    try:
        backend.probe()
    except Unavailable:
        return False
    return True
