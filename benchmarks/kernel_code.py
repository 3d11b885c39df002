"""Whether a refactoring changed any kernel's machine code: two records of the ahead-of-time tests, compared.

    export TRITON_DISABLE_LINE_INFO=1                                          # line numbers move ptxas' choices
    ATTNBENCH_KERNEL_CODE=before.jsonl pytest tests/kernels -k compiled        # at one commit
    ATTNBENCH_KERNEL_CODE=after.jsonl  pytest tests/kernels -k compiled        # at the other
    python benchmarks/kernel_code.py before.jsonl after.jsonl --out benchmarks/results/kernel-code.json

Each line of a record is one compilation: kernel, label of the test's job, compute capability, Triton, hash of the SASS.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

Found = dict[str, list[str]]
"Hashes of a kernel's SASS by 'kernel | label | sm | Triton', sorted: a label may come more than once."


def read(path: Path) -> Found:
    """Every compilation of a record."""
    found: Found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        name = f"{one['kernel']} | {one['label']} | sm_{one['capability']} | Triton {one['triton']}"
        found.setdefault(name, []).append(one["sass"])
    return {name: sorted(set(hashes)) for name, hashes in sorted(found.items())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path, help="where the comparison is written as JSON")
    args = parser.parse_args()
    before, after = read(args.before), read(args.after)
    both = before.keys() & after.keys()
    changed = {name: [before[name], after[name]] for name in sorted(both) if before[name] != after[name]}
    missing = {"only before": sorted(before.keys() - both), "only after": sorted(after.keys() - both)}
    print(f"{len(both)} compilations in both: {len(both) - len(changed)} with the same SASS, {len(changed)} changed")
    for name in [*changed, *(f"{where}: {name}" for where, names in missing.items() for name in names)]:
        print("  ", name)
    if args.out:
        same = {name: after[name] for name in sorted(both) if name not in changed}
        text = json.dumps({"same": same, "changed": changed, **missing}, indent=1)
        args.out.write_text(text + "\n", encoding="utf-8")
    return 1 if changed or any(missing.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
