"""`attnbench load`: serve a model under load; latency counts from the scheduled time of each request."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnbench.cli.executors import add_no_wait
from attnbench.cli.parser import Parser
from attnbench.errors import UsageError, absent, names_nothing, parsed, refusal, unknown
from attnbench.store.files import is_file
from attnbench.suites.settings import between, parse_setting, whole
from attnbench.workloads.attention.case import ACCEPTED_DTYPES
from attnbench.workloads.base import one_number, one_of, precision
from attnbench.workloads.hstu_serving.case import ON_HOST_HIT, PAGE_SIZES

if TYPE_CHECKING:
    from attnbench.loadtest.setup import Options

WHO = "attnbench load"
NAMES = ("hstu-serving",)
SCENARIOS = ("server", "offline", "gaps", "replay")
ATTENTIONS = ("paged", "gathered", "reference")
DRAIN_S = 30.0


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", help=f"workload to serve: {', '.join(NAMES)}")
    group = parser.add_argument_group("load")
    group.add_argument(
        "--config",
        metavar="NAME",
        help=("model, users and batching: bench, kuairand, dlrm-v3, small, tiny (default: bench, on a CPU small)"),
    )
    group.add_argument(
        "--scenario",
        metavar="NAME",
        help=(
            "server: Poisson arrivals by MLPerf LoadGen; offline: LoadGen, all requests at once; gaps: users who "
            "return after gaps of their own; replay: the requests of --source (default: server)"
        ),
    )
    group.add_argument("--rate", metavar="LIST", help="requests per second, one load each (default: the config's)")
    group.add_argument(
        "--find-rate",
        action="store_true",
        help=("search the highest rate at which 99 %% of all requests are answered within each --slo-ms"),
    )
    group.add_argument("--duration", metavar="S", help="seconds of arrivals (default: the config's)")
    group.add_argument("--slo-ms", metavar="LIST", help="limits of latency in ms (default: 50,100; for dlrm-v3 80)")
    group.add_argument(
        "--drain-s",
        metavar="S",
        help=("seconds after the last arrival; requests still open are then refused as backlog (default: 30)"),
    )
    group.add_argument("--users", metavar="N", help="number of users who send requests (default: the config's)")
    group.add_argument(
        "--gap-s",
        metavar="S",
        help=(
            "with --scenario gaps: mean seconds between two requests of one user; users are then the first rate times this"
        ),
    )
    group.add_argument(
        "--burstiness",
        metavar="B",
        help=(
            "with --scenario gaps: shape of the gamma distribution of gaps; 1 Poisson, below it bursts (default: 0.5)"
        ),
    )
    group.add_argument(
        "--source",
        metavar="DIR",
        help=("the files of `attnbench data`, for --scenario replay, which it makes the default"),
    )
    group.add_argument("--only-user", metavar="ID", help="with --scenario replay: only this user's requests")
    group.add_argument(
        "--candidates",
        metavar="KIND",
        help=(
            "with --scenario replay: following, the next items of the log, whose labels give an AUC per task; or drawn "
            "by seed from the items of --source (default: following)"
        ),
    )
    group.add_argument("--num-candidates", metavar="N", help="candidates per request (default: the config's)")
    group = parser.add_argument_group("server")
    group.add_argument("--max-batch", metavar="N", help="maximum of requests per batch (default: the config's)")
    group.add_argument(
        "--max-wait-ms",
        metavar="MS",
        help=("launch a batch that is not full once its oldest request has waited this long (default: the config's)"),
    )
    group.add_argument(
        "--attention",
        metavar="NAME",
        help=("paged, gathered or reference (default: paged, without a cache gathered, on a CPU reference)"),
    )
    group.add_argument("--no-cache", action="store_true", help="compute every history in full")
    group.add_argument(
        "--pool-share",
        metavar="X",
        help=("pages of the cache, as a share of the need of all users (default: the config's)"),
    )
    group.add_argument("--pool-pages", metavar="N", help="pages of the cache, instead of --pool-share")
    group.add_argument("--page-size", metavar="N", help="tokens per page: 32, 64 or 128 (default: the config's)")
    group.add_argument("--host-pages", metavar="N", help="pages of host memory behind the pool (default: 0)")
    group.add_argument(
        "--offload-chunk",
        metavar="N",
        help="with --host-pages: new tokens of a user that trigger a copy to the host (default: 1)",
    )
    group.add_argument(
        "--on-host-hit",
        metavar="HOW",
        help=("with --host-pages: reload, recompute, or auto (the faster one here) (default: reload)"),
    )
    group.add_argument(
        "--graph",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="run steps as CUDA graphs; default: on a GPU with a cache and paged attention",
    )
    group.add_argument(
        "--long-history",
        metavar="POLICY",
        help=("history over the model's maximum: truncate (keep its first items) or refuse (default: truncate)"),
    )
    group.add_argument("--checkpoint", metavar="FILE", help="weights, safetensors (default: random by seed)")
    group.add_argument("--dtype", metavar="NAME", help="bf16, fp16 or fp32 (default: bf16, on a CPU fp32)")
    group.add_argument("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N (default: auto)")
    group.add_argument("--seed", metavar="N", help="of users and arrivals (default: 0)")
    add_no_wait(group)
    group = parser.add_argument_group("output")
    group.add_argument("--dry-run", action="store_true", help="show what would be served, and its memory and time")
    group.add_argument("--json", metavar="PATH", help="the result as JSON; - for stdout")
    group.add_argument("--md", metavar="PATH", help="the tables as Markdown; - for stdout")
    group.add_argument("--html", metavar="PATH", help="tables and chart in one page; - for stdout")
    group.add_argument("--plots", metavar="DIR", help="write latency over rate as PNG and SVG")
    group.add_argument("--no-save", action="store_true", help="keep no file in --out")
    group.add_argument("-o", "--out", metavar="DIR", default="results", help="folder of results (default: results)")
    group.add_argument("-q", "--quiet", action="store_true", help="no table and no progress")
    parser.example(
        "attnbench load hstu-serving --rate 100,200,400",
        "attnbench load hstu-serving --find-rate --slo-ms 50",
        "attnbench load hstu-serving --config dlrm-v3 --scenario offline",
        "attnbench load hstu-serving --scenario gaps --rate 200 --gap-s 2",
        "attnbench load hstu-serving --device cpu --config tiny --rate 20",
    )


def run(args: argparse.Namespace) -> int:
    """Serve each load, then show and store the results."""
    from attnbench.cli.loading import carry_out
    from attnbench.loadtest.run import need_loadgen

    if args.name not in NAMES:
        raise unknown(WHO, "NAME", args.name, NAMES)
    scenario = _scenario(args)
    options = options_of(args)
    if scenario in ("server", "offline") and not args.dry_run:
        need_loadgen()
    return carry_out(args, options, scenario, _rates(args), _burstiness(args))


def _scenario(args: argparse.Namespace) -> str:
    """Return the scenario, after checking that the given flags belong to it."""
    found = args.scenario or ("replay" if args.source is not None else "gaps" if args.gap_s is not None else "server")
    if found not in SCENARIOS:
        raise unknown(WHO, "--scenario", found, SCENARIOS)
    if found == "replay" and args.source is None:
        raise UsageError(
            refusal(
                WHO,
                "--scenario",
                "replay",
                "has no requests",
                "--source DIR",
                "attnbench data kuairand-1k --to DIR writes them",
            )
        )
    for flag, of in (
        ("source", "replay"),
        ("only_user", "replay"),
        ("candidates", "replay"),
        ("gap_s", "gaps"),
        ("burstiness", "gaps"),
    ):
        if getattr(args, flag) is not None and found != of:
            name = "--" + flag.replace("_", "-")
            raise UsageError(
                refusal(WHO, name, getattr(args, flag), f"does not go with --scenario {found}", f"--scenario {of}")
            )
    if "," in (args.rate or "") and (args.find_rate or found == "offline"):
        why = "--find-rate" if args.find_rate else "--scenario offline"
        raise UsageError(refusal(WHO, "--rate", args.rate, f"has several values, {why} takes one", "one of them"))
    if args.find_rate and found not in ("server", "gaps"):
        raise UsageError(refusal(WHO, "--find-rate", "on", f"does not go with --scenario {found}", "server or gaps"))
    return str(found)


def options_of(args: argparse.Namespace) -> Options:
    """Return the options of the flags, each checked.

    Raises:
        UsageError: naming the flag, its value and what is accepted.
    """
    from attnbench.loadtest.presets import preset_of
    from attnbench.loadtest.replay import CANDIDATES
    from attnbench.loadtest.setup import Options
    from attnbench.loadtest.users import MOST_USERS, POLICIES
    from attnbench.machine.devices import resolve

    seconds, share = between(0, 1e6), between(0, 1e3)
    asked = {
        name: _value(args, name, parse)
        for name, parse in (
            ("duration", seconds),
            ("drain_s", seconds),
            ("users", _whole(1, MOST_USERS)),
            ("gap_s", seconds),
            ("num_candidates", _whole(0)),
            ("max_batch", _whole(1, 4096)),
            ("max_wait_ms", _from_zero),
            ("pool_share", share),
            ("pool_pages", _whole(1)),
            ("only_user", _whole(0)),
            ("page_size", one_number(*PAGE_SIZES)),
            ("host_pages", _whole(0)),
            ("offload_chunk", _whole(1)),
            ("seed", _whole(0)),
            ("dtype", precision(*ACCEPTED_DTYPES)),
            ("long_history", one_of(*POLICIES)),
            ("attention", one_of(*ATTENTIONS)),
            ("on_host_hit", one_of(*ON_HOST_HIT)),
            ("candidates", one_of(*CANDIDATES)),
        )
    }
    slos = _list(args, "slo_ms", seconds)
    device = resolve(parse_setting(WHO, "device", args.device or "auto"))
    preset = preset_of(args.config, on_gpu=device.on_gpu)
    if asked["num_candidates"] is not None and asked["num_candidates"] > preset.config.max_candidates:
        raise UsageError(
            refusal(
                WHO,
                "--num-candidates",
                asked["num_candidates"],
                f"is over the most of {preset.model}",
                f"0 to {preset.config.max_candidates}",
            )
        )
    if args.graph and not device.on_gpu:
        raise UsageError(refusal(WHO, "--graph", "true", "captures nothing on a CPU", "a GPU"))
    if args.graph and args.attention in ("gathered", "reference"):
        wrong = "does not go with --graph, it is of one step's lengths"
        raise UsageError(refusal(WHO, "--attention", args.attention, wrong, "paged"))
    if args.checkpoint is not None and not is_file(args.checkpoint):
        raise UsageError(refusal(WHO, "--checkpoint", args.checkpoint, absent(args.checkpoint), "a safetensors file"))
    if args.attention not in (None, "reference") and not device.on_gpu:
        raise UsageError(refusal(WHO, "--attention", args.attention, "has no kernels for a CPU", "reference"))
    cached = not (args.no_cache or preset.config.recency)
    _check_together(args, cached=cached, on_host=bool(asked["host_pages"]))
    if asked["gap_s"] is not None:
        if asked["users"] is not None:
            raise UsageError(refusal(WHO, "--gap-s", args.gap_s, "does not go with --users", "one of the two"))
        rate = (_rates(args) or preset.rates)[0]
        asked["users"] = min(MOST_USERS, max(1, round(rate * asked["gap_s"])))

    def chosen(name: str, usual: Any) -> Any:
        return usual if asked[name] is None else asked[name]

    return Options(
        preset=preset,
        device=device,
        users=chosen("users", preset.users),
        candidates=chosen("num_candidates", preset.candidates),
        max_batch=chosen("max_batch", preset.max_batch),
        max_wait_ms=chosen("max_wait_ms", preset.max_wait_ms),
        duration_s=chosen("duration", preset.duration_s),
        drain_s=chosen("drain_s", DRAIN_S),
        slos_ms=tuple(slos or preset.slos_ms),
        pool_share=asked["pool_share"],
        page_size=chosen("page_size", preset.page_size),
        pool_pages=asked["pool_pages"],
        host_pages=chosen("host_pages", 0),
        offload_chunk=chosen("offload_chunk", 1),
        on_host_hit=chosen("on_host_hit", ON_HOST_HIT[0]),
        graph=device.on_gpu and cached and args.attention in (None, "paged") if args.graph is None else args.graph,
        cache=not args.no_cache,
        attention=asked["attention"],
        long_history=chosen("long_history", POLICIES[0]),
        dtype=asked["dtype"],
        seed=chosen("seed", 0),
        checkpoint=args.checkpoint,
        source=args.source,
        only_user=asked["only_user"],
        candidates_of=chosen("candidates", CANDIDATES[0]),
    )


def _check_together(args: argparse.Namespace, *, cached: bool, on_host: bool) -> None:
    """Refuse flags that would have no effect.

    Raises:
        UsageError: naming the first.
    """
    if args.pool_pages is not None and args.pool_share is not None:
        raise UsageError(
            refusal(WHO, "--pool-pages", args.pool_pages, "does not go with --pool-share", "one of the two")
        )
    if args.users is not None and args.source is not None:
        raise UsageError(
            refusal(WHO, "--users", args.users, "does not go with --source, which has its own", "--only-user")
        )
    why = "without a cache" if args.no_cache else f"with --config {args.config}, which can have no cache"
    for name in ("pool_share", "pool_pages", "page_size", "host_pages"):
        if not cached and (value := getattr(args, name)) is not None:
            raise UsageError(refusal(WHO, "--" + name.replace("_", "-"), value, f"says nothing {why}", "none"))
    for name in ("on_host_hit", "offload_chunk"):
        if not on_host and (value := getattr(args, name)) is not None:
            raise UsageError(
                refusal(
                    WHO, "--" + name.replace("_", "-"), value, "says nothing without host memory", "with --host-pages N"
                )
            )


def _rates(args: argparse.Namespace) -> list[float]:
    return _list(args, "rate", between(0, 1e6))


def _burstiness(args: argparse.Namespace) -> float:
    from attnbench.loadtest.gaps import USUAL_BURSTINESS

    found: float | None = _value(args, "burstiness", between(0.01, 1e4))
    return USUAL_BURSTINESS if found is None else found


def _value(args: argparse.Namespace, name: str, parse: Callable[[str], Any]) -> Any:
    """Return the value of a flag; None if it is not given."""
    text = getattr(args, name)
    return None if text is None else parsed(WHO, "--" + name.replace("_", "-"), text, parse)


def _list(args: argparse.Namespace, name: str, parse: Callable[[str], Any]) -> list[Any]:
    text = getattr(args, name)
    if text is None:
        return []
    flag, words = "--" + name.replace("_", "-"), [word.strip() for word in text.split(",")]
    if not any(words):
        raise names_nothing(WHO, flag, text)
    return list(dict.fromkeys(parsed(WHO, flag, word, parse) for word in words))


def _whole(least: int, most: int = 10**9) -> Callable[[str], int]:
    return whole(least, most)


def _from_zero(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found < 1e6:
        raise ValueError("a number from 0 and below 1e+06")
    return found
