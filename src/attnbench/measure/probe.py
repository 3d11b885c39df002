"""Two small kernels of the harness: a marker that reads every SM's clock, and a flush of the L2.

The marker runs one program on each SM and writes that SM's cycle counter and the global nanosecond timer.  Two
markers around a launch give the mean clock of each SM over exactly that time (the global timer ticks every 32 ns
on an H200, which resolves 1 % of a 5 µs kernel).  They also delimit the launch in the stream, so that a profiler's
kernel records are attributed by position, never by name.  Measured on an H200: 0.8 µs per marker.

The flush reads a buffer of twice the L2.  Reading leaves clean lines: a flush that writes leaves
dirty ones, whose eviction delays the next kernel (8.16 instead of 8.06 µs for an H200's smallest
attention).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, no_type_check

import triton
import triton.language as tl

from attnbench.machine.device import Device

if TYPE_CHECKING:
    from torch import Tensor

FLUSH_BLOCK = 4096
FLUSH_PROGRAMS_PER_SM = 8


@triton.jit
@no_type_check
def attnbench_marker(stamps_ptr, ticket_ptr, NUM_SMS: tl.constexpr, MAX_SLOTS: tl.constexpr):  # noqa: ANN001, ANN201, D103
    # Launches of one stream do not overlap, so tickets of one launch lie in one block of NUM_SMS.
    ticket = tl.atomic_add(ticket_ptr, 1, sem="relaxed")
    slot = (ticket // NUM_SMS) % MAX_SLOTS
    lane = tl.zeros([1], tl.int32)
    sm, cycles, nanoseconds = tl.inline_asm_elementwise(
        "{ .reg .u32 sm; mov.u32 sm, %smid; cvt.u64.u32 $0, sm; mov.u64 $1, %clock64; mov.u64 $2, %globaltimer; }",
        "=l,=l,=l,r",
        [lane],
        dtype=(tl.int64, tl.int64, tl.int64),
        is_pure=False,
        pack=1,
    )
    where = stamps_ptr + (slot * NUM_SMS + sm) * 2
    # PTX guarantees neither that SM numbers are contiguous nor that they are below the number of SMs.
    tl.store(where, cycles, mask=sm < NUM_SMS)
    tl.store(where + 1, nanoseconds, mask=sm < NUM_SMS)


@triton.jit
@no_type_check
def attnbench_flush(buffer_ptr, sink_ptr, num_blocks, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201, D103
    total = tl.zeros([BLOCK], tl.int32)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        total += tl.load(buffer_ptr + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    found = tl.sum(total, axis=0)
    # The buffer is all zeros: the condition is never true, but it keeps the loads from being removed.
    if found != 0:
        tl.store(sink_ptr, found)


class Marker:
    """Writes SM clock stamps in stream order, at most `slots` between two calls of `start`."""

    def __init__(self, device: Device, slots: int = 2048) -> None:
        import torch

        self.num_sms = torch.cuda.get_device_properties(str(device)).multi_processor_count
        self.slots = slots
        self._stamps: Tensor = torch.zeros(slots, self.num_sms, 2, dtype=torch.int64, device=str(device))
        self._ticket: Tensor = torch.zeros(1, dtype=torch.int32, device=str(device))
        self._launch = _launcher(
            attnbench_marker, (self.num_sms, 1, 1), self._stamps, self._ticket, NUM_SMS=self.num_sms, MAX_SLOTS=slots
        )

    def start(self) -> None:
        """Discard earlier stamps."""
        self._stamps.zero_()
        self._ticket.zero_()

    def __call__(self) -> None:
        """Queue a stamp on the current stream."""
        self._launch()

    def sm_mhz(self, count: int) -> list[float | None]:
        """Return the mean SM clock between stamps 2i and 2i+1, for `count` pairs; synchronises."""
        stamps = self._stamps[: 2 * count].cpu().view(count, 2, self.num_sms, 2)
        seen = (stamps != 0).all(dim=-1).all(dim=1)  # [count, SMs]: stamped at both ends
        spent = (stamps[:, 1] - stamps[:, 0]).double()  # [count, SMs, (cycles, ns)]
        clocks: list[float | None] = []
        for index in range(count):
            on = seen[index]
            elapsed = float(spent[index, on, 1].sum())
            clocks.append(round(1e3 * float(spent[index, on, 0].sum()) / elapsed, 1) if elapsed > 0 else None)
        return clocks


class Flush:
    """Fills the L2 with clean lines of a buffer that nothing else reads."""

    def __init__(self, device: Device, l2_bytes: int) -> None:
        import torch

        sms = torch.cuda.get_device_properties(str(device)).multi_processor_count
        blocks = -(-2 * l2_bytes // (4 * FLUSH_BLOCK))
        self._buffer: Tensor = torch.zeros(blocks * FLUSH_BLOCK, dtype=torch.int32, device=str(device))
        self._sink: Tensor = torch.zeros(1, dtype=torch.int32, device=str(device))
        grid = (sms * FLUSH_PROGRAMS_PER_SM, 1, 1)
        self._launch = _launcher(attnbench_flush, grid, self._buffer, self._sink, blocks, BLOCK=FLUSH_BLOCK)

    def __call__(self) -> None:
        """Queue a flush on the current stream."""
        self._launch()


def _launcher(kernel: Any, grid: tuple[int, int, int], *arguments: Any, **constants: Any) -> Any:
    """Compile once and return a launcher that bypasses Triton's Python binder (17 µs a call on an H200's host)."""
    compiled = kernel[grid](*arguments, **constants)
    run = compiled[grid]
    positional = (*arguments, *constants.values())

    def launch() -> None:
        run(*positional)

    return launch
