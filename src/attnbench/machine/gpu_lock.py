"""A lock per GPU: two runs on one GPU would disturb each other's times.

One file per UUID in the system's temporary folder, locked by `flock`: the system releases it when its holder ends, in
any way.  Runs that do not share this folder, such as containers with their own, do not see each other's locks; their
effect on times is only noted (`machine.neighbours`).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from attnbench.errors import Unavailable, refusal
from attnbench.machine.device import Device
from attnbench.machine.lock_file import holder, let_go, taken
from attnbench.machine.nvml import open_gpu

LOOK_S = 0.5
"""How often to retry a lock that another run holds."""


class Held(Unavailable):
    """Another run holds the GPU."""


class GpuLock:
    """The lock of one GPU; does nothing for a device without a UUID (a CPU, a driver without NVML).

    Threads of one process share it: `tune` compiles on the GPU on which it measures.

    Args:
        device: device to measure on.
        wait: wait until the holder releases it; False refuses at once.
        uuid: UUID of the GPU; None asks the driver.
    """

    _held: ClassVar[dict[str, tuple[int, int]]] = {}
    "locks of this process, by UUID: descriptor and number of holders"
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, device: Device, *, wait: bool = True, uuid: str | None = None) -> None:
        self.device, self.wait = device, wait
        self._uuid = uuid
        self._mine = False

    def order(self) -> str:
        """Key by which several locks are ordered: processes may number the same GPUs differently."""
        return self._known() or str(self.device)

    def _known(self) -> str | None:
        """Return the UUID, looked up once."""
        if self._uuid is None and (gpu := open_gpu(self.device)):
            self._uuid = gpu.uuid()
        return self._uuid

    def acquire(self, say: Callable[[str], None]) -> None:
        """Take the lock.

        Args:
            say: called once with the holder's name before waiting.

        Raises:
            Held: another run holds it, and `wait` is False.
            Unavailable: its file cannot be opened.
        """
        uuid = self._known()
        if uuid is None or self._mine:
            return
        said = False
        while not self._try(uuid):
            who = holder(_place(uuid))
            if not self.wait:
                accepted = "leave out --no-wait to wait for it, or another GPU"
                raise Held(refusal("attnbench", "device", self.device, f"is held by {who}", accepted))
            if not said:
                say(f"waiting for {self.device}, which is held by {who}")
                said = True
            time.sleep(LOOK_S)
        self._mine = True

    def release(self) -> None:
        """Release the lock."""
        if not self._mine or self._uuid is None:
            return
        self._mine = False
        with self._guard:
            handle, count = self._held[self._uuid]
            if count > 1:
                self._held[self._uuid] = handle, count - 1
            else:
                del self._held[self._uuid]
                let_go(handle)

    def _try(self, uuid: str) -> bool:
        with self._guard:
            if uuid in self._held:
                handle, count = self._held[uuid]
                self._held[uuid] = handle, count + 1
                return True
            try:
                found = taken(_place(uuid))
            except OSError as error:
                raise Unavailable(f"device: lock={_place(uuid)} cannot be taken ({error.strerror})") from None
            if found is None:
                return False
            self._held[uuid] = found, 1
            return True


@contextmanager
def holding(devices: Sequence[Device], say: Callable[[str], None], *, wait: bool) -> Iterator[None]:
    """While open, the GPUs are this process's: all of them, taken in an order that all processes have.

    Args:
        devices: what is to be measured on.
        say: told who holds one, where it is waited for.
        wait: until its holder lets go; False refuses at once.

    Raises:
        Held: another run holds one, and it is not to be waited for.
        Unavailable: a file cannot be opened.
    """
    with ExitStack() as closing:
        for lock in sorted((GpuLock(device, wait=wait) for device in devices), key=GpuLock.order):
            closing.callback(lock.release)
            lock.acquire(say)
        yield


def _place(uuid: str) -> Path:
    plain = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in uuid)
    return Path(tempfile.gettempdir()) / f"attnbench-{plain}.lock"
