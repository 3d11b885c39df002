"""How often right problems are called wrong by the error budget, and how often wrong ones are found.

    nice python benchmarks/budgets.py --out benchmarks/results/budgets.json [--problems N] [--planted N] [--seed S]

Right: N random problems of softmax and HSTU attention (dense and block-sparse), of every precision, tiny to
9000 keys, with GQA, masks, windows, large scores, values off centre, forward alone and with gradients.  Each is
computed by several implementations that round in their own places and order (`budgets_honest.py`), and each of these
is held against the truth as a backend is.  Wrong: problems of 64 to 200 rows with unit inputs, an error planted in each
(`budgets_wrong.py`).  And what large scores do to gradients from a stored logarithm, beside those from one in fp64.

A problem has a number; its number and the seed are all that its draws depend on, so that any of them can be had again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from budgets_honest import Outputs, hstu_implementations, laid_out, softmax_implementations
from budgets_wrong import planted

from attnbench.backends.base import Budget
from attnbench.check.compare import Truth, compare, limits, make_truth
from attnbench.check.deviation import measure
from attnbench.errors import UsageError
from attnbench.workloads.attention import WORKLOAD as ATTENTION
from attnbench.workloads.base import Draw
from attnbench.workloads.hstu import WORKLOAD as HSTU

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SIZES = {
    "tiny": ((1, 4), (1, 9)),
    "small": ((1, 70), (1, 90)),
    "middle": ((1, 200), (1, 300)),
    "decode": ((1, 1), (1, 1500)),
    "long": ((1, 3), (2000, 9000)),
}
"Queries and keys."


def softmax_problem(chance: random.Random) -> tuple[str, Any, Any]:
    """Variant, case and inputs of one random problem."""
    kind = chance.choices(list(SIZES), [3, 4, 3, 2, 0.3])[0]
    queries, keys = (chance.randint(*bounds) for bounds in SIZES[kind])
    if kind != "long" and queries > 1 and chance.random() < 0.4:
        keys = queries
    groups, dim = chance.choice([1, 1, 2]), chance.choice([1, 2, 8, 16, 32, 64, 64, 128])
    bounds = chance.randint(0, keys), chance.choice([-1, chance.randint(0, queries)])
    case = ATTENTION.case(
        {
            "batch": chance.choice([1, 1, 2]),
            "seqlen": queries,
            "seqlen_k": keys,
            "nheads_kv": groups,
            "nheads": groups * chance.choice([1, 1, 2, 4]),
            "headdim": dim,
            "headdim_v": dim if chance.random() < 0.8 else chance.choice([1, 8, 64]),
            "causal": chance.random() < 0.4,
            "window": None if chance.random() < 0.7 else bounds,
            "dtype": chance.choice(["fp32", "fp32", "bf16", "fp16"]),
            "mode": "fwd" if kind == "long" or chance.random() < 0.35 else "bwd",
        }
    )
    return "softmax", case, varied(ATTENTION, case, chance)


def hstu_problem(chance: random.Random) -> tuple[str, Any, Any]:
    """The same of HSTU attention."""
    variant, rows = chance.choice(["hstu", "hstu-bsa"]), chance.randint(1, chance.choice([12, 120, 300]))
    values: dict[str, Any] = {
        "batch": chance.choice([1, 2]),
        "seqlen": rows,
        "nheads": chance.choice([1, 2]),
        "attn_dim": chance.choice([1, 4, 16, 32, 64, 128]),
        "linear_dim": chance.choice([None, None, 1, 8, 64]),
        "dtype": chance.choice(["fp32", "fp32", "bf16", "fp16"]),
        "mode": chance.choice(["fwd", "bwd", "bwd"]),
        "lengths": chance.choice(["full", "uniform"]),
        "delta_q": chance.choice([None, None, chance.randint(1, rows)]),
        "num_targets": chance.choice(["0", "0", str(chance.randint(0, rows // 2))]),
    }
    if variant == "hstu":
        values |= {
            "causal": chance.random() < 0.7,
            "max_attn_len": chance.choice([None, None, chance.randint(1, rows)]),
            "contextual_len": chance.choice([0, 0, chance.randint(0, rows // 2)]),
        }
    else:
        size = chance.choice([2, 4, 16, 32])
        values |= {
            "block_size": size,
            "block_counts": chance.randint(1, min(4, -(-rows // size))),
            "local_window": chance.choice([None, chance.randint(1, rows)]),
            "gates": chance.random() < 0.6,
            "selection": chance.choice(["head", "shared"]),
        }
    case = HSTU.case(values)
    return variant, case, varied(HSTU, case, chance)


def varied(workload: Any, case: Any, chance: random.Random) -> Any:
    """Inputs, of three in ten problems with queries up to 30 times as large, of one in ten with other means."""
    inputs = workload.inputs(
        case, seed=chance.randrange(2**31), kind=chance.choice(["normal", "normal", "uniform"]), device="cpu"
    )
    if chance.random() < 0.3:
        inputs.q.mul_(10 ** chance.uniform(0, 1.5))
    for x, most in ((inputs.v, 4), (inputs.k, 2)):
        if chance.random() < 0.1:
            x.add_(chance.uniform(0, most))
    return inputs


def truth_of(workload: Any, variant: str, case: Any, inputs: Any) -> Truth:
    """As `check.reference` makes it."""
    oracle, plain = (
        workload.oracle(variant, case, inputs, dtype=dtype, draw=Draw())
        for dtype in (torch.float64, DTYPES[case.dtype])
    )
    expected = workload.expected_errors(variant, case, inputs, draw=Draw())
    return make_truth(oracle, plain, expected, DTYPES[case.dtype], workload.outputs(variant))


def right_problem(seed: str) -> tuple[str, Any, Iterator[tuple[str, Truth, Outputs]]]:
    """One random problem and what each implementation makes of it."""
    chance = random.Random(seed)
    while True:
        try:
            variant, case, inputs = (softmax_problem if chance.random() < 0.7 else hstu_problem)(chance)
        except UsageError:  # prefix and targets that do not fit into the rows
            continue
        workload = ATTENTION if variant == "softmax" else HSTU
        truth = truth_of(workload, variant, case, inputs)
        if truth.oracle["out"].numel():
            break
    kinds = softmax_implementations(case) if variant == "softmax" else hstu_implementations(variant)
    return variant, case, ((name, truth, compute(case, inputs, chance)) for name, compute in kinds.items())


def shares_of(found: Outputs, truth: Truth, name: str) -> tuple[float, float, float]:
    """Largest error, row's and slice's, of what is accepted of each."""
    expected, accepted = truth.expected[name], limits(name, truth, Budget())
    if not expected.largest:
        return 0.0, 0.0, 0.0
    off = measure(found[name], truth.oracle[name], expected=expected)
    return (
        off.max_abs / accepted.element,
        off.row.value / accepted.row,
        off.slice.value / accepted.slice if off.slice else 0.0,
    )


def simulate_right(problems: int, seed: int) -> dict[str, Any]:
    """Alarms among right results, and how near to the line they come."""
    counts: Counter[str] = Counter()
    alarms, shares = [], defaultdict(list)
    for number in range(problems):
        variant, case, results = right_problem(f"right {seed} {number}")
        counts["problems"] += 1
        counts[f"problems {case.dtype}"] += 1
        counts[f"problems {variant}"] += 1
        for name, truth, found in results:
            outcome = compare(found, truth, Budget())
            counts["results"] += 1
            counts["outputs"] += len(truth.oracle)
            if not outcome.ok:
                alarms.append({"problem": number, "case": case.id, "by": name, "words": list(outcome.faults.values())})
            for output in outcome.errors:
                shares[f"{variant} {case.dtype} {'out' if output == 'out' else 'gradients'}"].append(
                    shares_of(found, truth, output)
                )
    largest = {key: [round(max(one), 3) for one in zip(*x, strict=True)] for key, x in sorted(shares.items())}
    return {
        "counts": dict(sorted(counts.items())),
        "alarms": alarms,
        "problems_with_an_alarm": len({alarm["problem"] for alarm in alarms}),
        "largest_share_of_what_is_accepted": {
            key: dict(zip(("element", "row", "slice"), x, strict=True)) for key, x in largest.items()
        },
    }


def wrong_problem(seed: str) -> tuple[Any, dict[str, bool]]:
    """A problem of 64 to 200 rows and more than one KV head, and whether each planted error is found."""
    chance = random.Random(seed)
    rows = chance.randint(64, 200)
    case = ATTENTION.case(
        {
            "batch": 1,
            "seqlen": rows,
            "seqlen_k": chance.choice([rows, chance.randint(64, 300)]),
            "nheads_kv": 2,
            "nheads": chance.choice([2, 4]),
            "headdim": chance.choice([16, 64, 128]),
            "dtype": chance.choice(list(DTYPES)),
            "mode": chance.choice(["fwd", "bwd"]),
        }
    )
    inputs = ATTENTION.inputs(case, seed=chance.randrange(2**31), kind="normal", device="cpu")
    truth = truth_of(ATTENTION, "softmax", case, inputs)
    right = softmax_implementations(case)["flash"](case, inputs, chance)
    return case, {
        name: not compare(plant(case, inputs, right, chance), truth, Budget()).ok
        for name, plant in planted(case).items()
    }


def simulate_wrong(problems: int, seed: int) -> dict[str, dict[str, dict[str, int]]]:
    """Of each planted error and precision, how many were found of how many."""
    found: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: {"found": 0, "of": 0}))
    for number in range(problems):
        case, results = wrong_problem(f"wrong {seed} {number}")
        for name, seen in results.items():
            found[name][case.dtype]["found"] += seen
            found[name][case.dtype]["of"] += 1
    return {name: {dtype: found[name][dtype] for dtype in DTYPES if dtype in found[name]} for name in sorted(found)}


def simulate_lse(problems: int, seed: int) -> dict[str, Any]:
    """Why gradients in fp32 of scores of up to some hundred are off by more than the plain evaluation's.

    They are computed in fp32 from a logarithm of the forward's scores, stored in fp32 or in fp64, and from scores
    that are the forward's or added up in another order.  Errors are told in those of the plain evaluation: a
    budget of these alone allowed 4 and a little.
    """
    ratios = defaultdict(list)
    for number in range(problems):
        chance = random.Random(f"lse {seed} {number}")
        case = ATTENTION.case(
            {"batch": 1, "seqlen": chance.randint(8, 100), "nheads": 1, "headdim": 64, "dtype": "fp32", "mode": "bwd"}
        )
        inputs = ATTENTION.inputs(case, seed=chance.randrange(2**31), kind="normal", device="cpu")
        inputs.q.mul_(chance.uniform(10, 60))
        truth = truth_of(ATTENTION, "softmax", case, inputs)
        q, k, v, do = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v, inputs.dout))
        order = torch.randperm(64, generator=torch.Generator().manual_seed(number))
        scores = {
            "the forward's scores": q @ k.mT * case.scale,
            "other sums": q[..., order] @ k[..., order].mT * case.scale,
        }
        lse = scores["the forward's scores"].double().logsumexp(-1, keepdim=True)
        delta = (do * truth.oracle["out"].transpose(1, 2).float()).sum(-1, keepdim=True)
        for (whose, s), (kind, stored) in product(scores.items(), (("fp32", lse.float()), ("fp64", lse))):
            p = (s - stored).exp().float()
            ds = p * (do @ v.mT - delta)
            found = laid_out(case, torch.float32, do, ds @ k * case.scale, ds.mT @ q * case.scale, p.mT @ do)
            # In dV there is nothing but the weights.
            off = float((found["dv"].double() - truth.oracle["dv"]).abs().max())
            ratios[f"{whose}, logarithm in {kind}"].append(
                (off / truth.plain["dv"].max_abs, off / truth.expected["dv"].largest)
            )
    return {
        kind: {
            "median of plain": round(statistics.median(a for a, _ in x), 2),
            "over 4 of plain": sum(a > 4 for a, _ in x),
            "largest of expected": round(max(b for _, b in x), 2),
            "of": len(x),
        }
        for kind, x in ratios.items()
    }


def main() -> None:
    """Simulate and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=12000)
    parser.add_argument("--planted", type=int, default=500)
    parser.add_argument("--seed", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = {
        "seed": args.seed,
        "right": simulate_right(args.problems, args.seed),
        "planted": simulate_wrong(args.planted, args.seed),
        "lse": simulate_lse(200, args.seed),
    }
    args.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
