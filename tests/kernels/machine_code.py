"""The contents of compiled code: SASS, many kernels disassembled at once, and PTX.

Used by compiler.py; imports nothing of ours.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

TENSOR_CORE = ("HGMMA", "HMMA", "UTCHMMA", "IGMMA", "QGMMA", "UTCQMMA")
"""SASS of a matrix product: warpgroup (sm_90), warp (sm_80), tensor memory (sm_100), and the 8-bit ones."""
WARPGROUP = ("HGMMA", "IGMMA", "QGMMA")
"""Warpgroup products: of 16 bits, of int8 and of 8-bit floats."""

Code = list[tuple[int, str, str]]
"Address, instruction and operands."


def tools() -> Path:
    """Paths of the binary tools in Triton's own wheel."""
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def registers_of(cubin: bytes) -> int:
    """Registers of a thread, as the kernel is launched."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tools() / "cuobjdump", "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return max(map(int, re.findall(r"REG:(\d+)", said)))


def machine_code(cubin: bytes) -> bytes:
    """The sections of an ELF file that hold instructions."""
    (sections,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, sections + place * size) for place in range(count)]
    names = headers[of_names][4]
    return b"".join(
        cubin[start : start + length]
        for name, _, _, _, start, length in headers
        if cubin[names + name :].startswith(b".text.")
    )


def disassembled(codes: Sequence[bytes], capability: int) -> list[str]:
    """The SASS of each kernel, by one process for all: nvdisasm takes longer to start than to read a kernel.

    Addresses continue from one kernel to the next.
    """
    ends = [0]
    for code in codes:
        ends.append(ends[-1] + len(code))
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        command = [tools() / "nvdisasm", "-ndf", "-b", f"SM{capability}{'a' * (capability >= 90)}", file.name]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines(keepends=True)
    placed = [(int(at[1], 16), line) for line in lines if (at := re.match(r"\s+/\*([0-9a-f]{4,})\*/", line))]
    return ["".join(line for at, line in placed if start <= at < end) for start, end in pairwise(ends)]


def instructions_of(sass: str) -> Code:
    """The instructions of each kernel, line by line."""
    found = re.findall(
        r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(WARPGROUP\.DEPBAR|[A-Z][A-Z0-9_]*)([^;]*);", sass, re.MULTILINE
    )
    return [(int(at, 16), name, rest) for at, name, rest in found]


def early_arrivals(ptx: str) -> int:
    """Arrivals at mbarriers without a warp barrier, or with an access to shared memory after it; not those of TMA."""
    early, met = 0, False
    for line in ptx.splitlines():
        if "mbarrier.arrive" in line and "expect_tx" not in line:
            early += not met
        elif re.search(r"\bbar\.sync\b", line):
            met = True
        elif re.match(r"\$L__BB|.*(shared|matrix|wgmma|cp\.async|cp\.reduce)", line):
            met = False
    return early


def handovers(ptx: str) -> dict[str, int]:
    """Acquires and releases at gpu scope, and those without a barrier between them and the accesses they order."""
    found = {"acquire": 0, "release": 0, "open": 0}
    met = acquired = False
    for line in ptx.splitlines():
        touches = re.search(r"\b(ld|st|atom|red|cp\.async)\.\S*\bglobal\b", line)
        order = re.search(r"\bgpu\.(acquire|release)\b", line)
        if re.search(r"\bbar\.sync\b", line):
            met, acquired = True, False
        elif touches or line.startswith("$L__BB"):
            found["open"] += acquired
            met, acquired = met and order is not None, order is not None and order[1] == "acquire"
        if order:
            found[order[1]] += 1
            found["open"] += order[1] == "release" and not met
    return found


def warps(ptx: str, plain: int) -> int:
    """Warps of a program according to the PTX, including those of a specialised loop."""
    demanded = re.search(r"\.reqntid (\d+)", ptx)
    return int(demanded[1]) // 32 if demanded else plain


def counts(names: Iterable[str]) -> dict[str, int]:
    wanted = {
        *TENSOR_CORE,
        "LDL",
        "STL",
        "MUFU",
        "LDGSTS",
        "UTMALDG",
        "UTMAREDG",
        "FMUL",
        "FFMA",
        "FADD",
        "FSEL",
        "HFMA2",
        "F2FP",
        "I2FP",
        "PRMT",
        "SEL",
        "FMNMX",
        "SHFL",
        "MOV",
        "ISETP",
        "LDS",
        "STS",
        "RED",
        "ATOM",
        "ATOMG",
        "REDG",
        "ACQBULK",
        "PREEXIT",
        "WARPSYNC",
        "WARPGROUP.DEPBAR",
        "BAR",
        "SYNCS",
    }
    found = Counter(names)
    return {name: found[name] for name in sorted(wanted & set(found))} | {"all": found.total()}


def before_wait(names: Iterable[str]) -> dict[str, int]:
    """Accesses to global memory before the wait for the previous kernel; none where there is no wait."""
    before = list(names)
    end = before.index("ACQBULK") if "ACQBULK" in before else 0
    return dict(
        Counter(name for name in before[:end] if name in ("LDG", "STG", "RED", "REDG", "ATOM", "ATOMG", "LDGSTS"))
    )


def loops(code: Code) -> list[dict[str, dict[str, int]]]:
    places = {at: place for place, (at, _, _) in enumerate(code)}
    spans = []
    for place, (at, name, rest) in enumerate(code):
        target = re.search(r"0x([0-9a-f]+)\s*$", rest) if name == "BRA" else None
        begin = int(target[1], 16) if target else at
        if begin < at and begin in places:
            inside = {name for _, name, _ in code[places[begin] : place]}
            # A polling wait jumps back from after the kernel's end: that is no loop around it.
            if inside & {*TENSOR_CORE} and not inside & {"EXIT", "USETMAXREG"}:
                spans.append((places[begin], place + 1))
    inner = [
        one for one in spans if not any(one != other and one[0] <= other[0] and other[1] <= one[1] for other in spans)
    ]
    return [
        {"sass": counts(name for _, name, _ in code[begin:end]), "beside": counts(_beside(code[begin:end]))}
        for begin, end in inner
    ]


def _beside(code: Code) -> Iterator[str]:
    in_flight = False
    for turn in range(2):  # the first pass finds what is in flight at the beginning of an iteration
        for _, name, rest in code:
            if name in WARPGROUP:
                in_flight = True
            elif name == "WARPGROUP.DEPBAR":
                in_flight = not rest.rstrip().endswith("0x0")
            elif in_flight and turn:
                yield name
