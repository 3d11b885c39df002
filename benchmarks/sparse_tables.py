"""Rows of the tables of sparse and quantised attention: runs of the suites `sparse`, `sparse-length` and `quant`."""

from __future__ import annotations

from typing import Any

from attnbench.presentation import sparse
from attnbench.record import Record, Run
from attnbench.store.derive import speedup_of

OURS = ("flash-quant", "flash-sparse", "flash-sparse-quant")


def peer_rows(run: Run) -> list[list[str]]:
    """A row a backend, the fastest first: times, both rates, density, E, and the phases before the kernel."""
    timed = sorted((one for one in run.records if one.time and one.time.median_ms), key=lambda one: one.time.median_ms)
    return [_row(record) for record in timed]


def _row(record: Record) -> list[str]:
    rate, efficiency = record.rate, sparse.efficiency(record)
    phases = [record.phases.get(name) for name in ("predict", "convert")]
    return [
        f"`{record.backend}`",
        f"{record.time.median_ms:.3f}",
        f"{rate.tflops:.0f}",
        f"{rate.effective_tflops:.0f}",
        f"{sparse.density(record):.2f}",
        "" if efficiency is None else f"{efficiency:.2f}",
        *("" if phase is None else f"{1e3 * phase.median_ms:.0f}" for phase in phases),
    ]


def cases(run: Run, *names: str) -> list[tuple[tuple[Any, ...], dict[str, Record]]]:
    """Passed records by backend, for each case of a run, said by some of its fields and in their order."""
    found: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in run.records:
        if record.time and record.time.median_ms:
            found.setdefault(tuple(record.case[name] for name in names), {})[record.backend] = record
    return sorted(found.items())


def ours_rows(quant: Run, mapped: Run) -> list[list[str]]:
    """A row a kernel of ours and shape, as `kernel_tables.ours_rows` has them.

    Args:
        quant: of the suite `quant`; causal cases of 128 dims from 4096 rows on are shown.
        mapped: of the suite `sparse`, one map; rates are those of the map's FLOPs.
    """
    long = [
        one for one in quant.records if one.case["headdim"] == 128 and one.case["causal"] and one.case["seqlen"] >= 4096
    ]
    found = []
    for records in (long, mapped.records):
        for own in records:
            if own.backend not in OURS or not own.rate:
                continue
            peers = [one for one in records if one.case_id == own.case_id and one.rate and not _own(one.backend)]
            peer = max(peers, key=lambda one: one.rate.tflops)
            case, ratio = own.case, speedup_of(peer, own).ratio
            end = f"-density{case['density']:g}" if "density" in case else "-causal"
            shape = f"d{case['headdim']}-s{case['seqlen']}{end}"
            rates = f"{own.rate.tflops:.0f}", f"`{peer.backend}`", f"{peer.rate.tflops:.0f}"
            found.append([f"`{own.backend}` fwd", shape, *rates, f"{ratio:.2f}"])
    return found


def _own(backend: str) -> bool:
    return backend in (*OURS, "flash-triton") or backend.startswith("dense[")


def backends_of(run: Run) -> list[str]:
    """Backends that a run has times of, in its order."""
    return list(dict.fromkeys(record.backend for record in run.records if record.time))


def sweep(run: Run) -> tuple[list[str], list[list[str]]]:
    """E over density, beside the executed rate, of each pattern of maps: head and rows."""
    names = [name for name in backends_of(run) if not name.startswith("dense[")]
    dense = [name for name in backends_of(run) if name.startswith("dense[")]
    head = ["map", "causal", "density", *(f"`{name}` ms" for name in dense)]
    for name in names:
        head += [f"`{name}` TFLOP/s", "E"]
    rows = []
    for (pattern, causal, _), there in cases(run, "pattern", "causal", "density"):
        row = [f"`{pattern}`", "yes" if causal else "no", f"{_shown(next(iter(there.values())))}"]
        row += [f"{there[name].time.median_ms:.2f}" if name in there else "" for name in dense]
        for name in names:
            row += [_rate(there.get(name)), _efficiency(there.get(name))]
        rows.append(row)
    return head, rows


def lengths(run: Run) -> tuple[list[str], list[list[str]]]:
    """Effective rate over length, the fastest in bold: head and rows."""
    names = backends_of(run)
    rows = []
    for (causal, _, seqlen), there in cases(run, "causal", "density", "seqlen"):
        best = max(there.values(), key=lambda one: one.rate.effective_tflops).backend
        cells = [f"{there[name].rate.effective_tflops:.0f}" if name in there else "" for name in names]
        bold = [f"**{cell}**" if name == best else cell for name, cell in zip(names, cells, strict=True)]
        share = f"{sparse.density(next(one for name, one in there.items() if not name.startswith('dense['))):.2f}"
        rows.append(["yes" if causal else "no", share, str(seqlen), *bold])
    return ["causal", "density", "length", *(f"`{name}`" for name in names)], rows


def quantised(run: Run) -> tuple[list[str], list[list[str]]]:
    """Rate of the whole op, and of its kernel alone where the backend times it apart: head and rows."""
    names = backends_of(run)
    apart = {name for name in names for one in run.records if one.backend == name and "kernel" in one.phases}
    rows = []
    for (dim, seqlen, causal), there in cases(run, "headdim", "seqlen", "causal"):
        row = [str(dim), str(seqlen), "yes" if causal else "no"]
        for name in names:
            record = there.get(name)
            row.append(_rate(record))
            if name in apart:
                row.append(_kernel_rate(record))
        rows.append(row)
    head = ["head dim", "length", "causal"]
    for name in names:
        head += [f"`{name}`", "its kernel"] if name in apart else [f"`{name}`"]
    return head, rows


def distances(run: Run, seqlen: int) -> tuple[list[str], list[list[str]]]:
    """Relative L1 of outputs of one length, and of the worst head: head and rows."""
    rows = []
    for (dim, length, causal), there in cases(run, "headdim", "seqlen", "causal"):
        if length == seqlen:
            for name, record in there.items():
                error = record.errors["out"]
                worst = "" if error.head_rel_l1 is None else f"{error.head_rel_l1:.4f}"
                rows.append([f"`{name}`", str(dim), "yes" if causal else "no", f"{error.rel_l1:.4f}", worst])
    return ["backend", "head dim", "causal", "relative L1", "worst head"], sorted(rows)


def _shown(record: Record) -> str:
    return f"{record.case['density']:g}"


def _rate(record: Record | None) -> str:
    return f"{record.rate.tflops:.0f}" if record else ""


def _efficiency(record: Record | None) -> str:
    found = sparse.efficiency(record) if record else None
    return "" if found is None else f"{found:.2f}"


def _kernel_rate(record: Record | None) -> str:
    phase = record.phases.get("kernel") if record else None
    return f"{record.work.flops / phase.median_ms / 1e9:.0f}" if phase else ""
