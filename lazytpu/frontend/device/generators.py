"""Random number generators of the device: a pair (seed, offset) on the host (R7).

The bits of a random op are a function of (seed, offset, element index), with the generator's offset when the op was
recorded; each op advances it by one. So a stream does not depend on where traces are cut, drawing needs no device, and
getting or setting a state never waits.
"""

from __future__ import annotations

import secrets
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lazytpu.frontend.device.facades import facade
from lazytpu.frontend.torch_private import CpuGenerator, native_address

_SEED_AT_START = 67280421310721  # at::default_rng_seed_val, torch's initial seed on every device
_STATE = struct.Struct("<QQ")
_lock = threading.RLock()  # reentrant: a thread that holds it for several draws takes it again in each


def packed(seed: int, offset: int) -> torch.Tensor:
    """Return a generator's state: 16 bytes, a uint8 tensor on the CPU."""
    return torch.frombuffer(bytearray(_STATE.pack(seed, offset)), dtype=torch.uint8)


def unpacked(state: torch.Tensor) -> tuple[int, int]:
    """Return (seed, offset) of a state. Raises TypeError if the argument is not a state."""
    if not isinstance(state, torch.Tensor) or state.dtype is not torch.uint8 or state.numel() != _STATE.size:
        got = f"{state.dtype} of {state.numel()}" if isinstance(state, torch.Tensor) else type(state).__name__
        raise TypeError(f"RNG state must be a torch.ByteTensor of {_STATE.size} bytes (from get_state), got {got}")
    seed, offset = _STATE.unpack(bytes(state.cpu().tolist()))
    return seed, offset


class TpuGenerator(CpuGenerator):
    """A generator of `device`; `torch.Generator("tpu")` returns it.

    torch passes a generator to kernels as its C++ part, which for a device in Python is a CPU generator. Nothing draws
    from that part; it only identifies this object (`draw`).
    """

    _device: torch.device
    _seed: int
    _offset: int

    def __new__(cls, device: torch.device) -> TpuGenerator:
        generator = CpuGenerator.__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]
        generator._device = torch.device(device.type, device.index or 0)
        generator._seed, generator._offset = _SEED_AT_START, 0
        _generators[native_address(generator)] = generator
        return generator

    @property
    def device(self) -> torch.device:
        return self._device

    def manual_seed(self, seed: int) -> TpuGenerator:
        """Restart the stream from `seed`: -2**63 <= seed < 2**64; negative seeds wrap around at 2**64."""
        if not -(1 << 63) <= int(seed) < 1 << 64:
            raise RuntimeError(f"Overflow when unpacking long long: a seed is in [-2**63, 2**64), got {seed}")
        with _lock:
            self._seed, self._offset = int(seed) % (1 << 64), 0
        return self

    def seed(self) -> int:
        """Restart the stream from a seed of the system's entropy. Returns that seed."""
        self.manual_seed(secrets.randbits(64))
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed from which the stream started."""
        return self._seed

    def get_offset(self) -> int:
        """Return the number of draws since the stream started."""
        with _lock:
            return self._offset

    def set_offset(self, offset: int) -> None:
        self._offset = int(offset)

    def get_state(self) -> torch.Tensor:
        """Return (seed, offset) as 16 bytes: a uint8 tensor on the CPU."""
        with _lock:
            return packed(self._seed, self._offset)

    def set_state(self, state: torch.Tensor) -> TpuGenerator:
        """Restore a state that `get_state` returned."""
        seed, offset = unpacked(state)
        with _lock:
            self._seed, self._offset = seed, offset
        return self

    def clone_state(self) -> TpuGenerator:
        return TpuGenerator(self._device).set_state(self.get_state())

    def graphsafe_get_state(self) -> TpuGenerator:
        return self.clone_state()

    def graphsafe_set_state(self, state: torch.Generator) -> TpuGenerator:
        return self.set_state(state.get_state())

    def __reduce__(self) -> Any:
        return _rebuild, (str(self._device), self._seed, self._offset)

    def __repr__(self) -> str:
        return f"<torch.Generator on {self._device}, seed {self._seed}, offset {self._offset}>"


_generators: weakref.WeakValueDictionary[int, TpuGenerator] = weakref.WeakValueDictionary()


def _rebuild(device: str, seed: int, offset: int) -> TpuGenerator:
    generator = TpuGenerator(torch.device(device)).manual_seed(seed)
    generator.set_offset(offset)
    return generator


def _construct(device: Any = "cpu") -> torch.Generator:
    device = torch.device("tpu", device) if isinstance(device, int) else torch.device(device)
    return TpuGenerator(device) if device.type == "tpu" else CpuGenerator(device)


default_generator = TpuGenerator(torch.device("tpu", 0))


def generators() -> list[TpuGenerator]:
    """Return all generators of the device, including the default one."""
    return list(_generators.values())


def draw(generator: torch.Generator | None = None) -> tuple[int, int]:
    """Draw (seed, offset) for one random op, as unsigned 64-bit numbers; each pair is drawn once per generator.

    Raises RuntimeError for a generator of another device, as torch does.
    """
    source = default_generator if generator is None else _generators.get(native_address(generator))
    if source is None:
        assert generator is not None
        raise RuntimeError(f"Expected a 'tpu' device type for generator but found '{generator.device.type}'")
    with _lock:
        offset = source._offset
        source._offset = offset + 1
        return source._seed, offset


def undraw(generator: torch.Generator | None, offset: int) -> None:
    """Take back the last `draw`, which returned `offset`, for an op that was not recorded.

    When the op is recorded again after a cut, it draws the same numbers (R7). Does nothing if another thread has drawn
    since.
    """
    source = default_generator if generator is None else _generators[native_address(generator)]
    with _lock:
        if source._offset == offset + 1:
            source._offset = offset


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Context: take back afterwards the draws of this thread from the default generator.

    Other threads wait with their draws, so that they draw the same numbers as without it.
    """
    with _lock:
        seed, offset = default_generator._seed, default_generator._offset
        try:
            yield
        finally:
            default_generator._seed, default_generator._offset = seed, offset


def renew_lock() -> None:
    """Replace the lock in a forked child, where the thread that held it does not exist."""
    global _lock
    _lock = threading.RLock()


def install() -> None:
    """Let `torch.Generator("tpu")` create generators of the device."""
    torch.Generator = facade(CpuGenerator, _construct)  # pyright: ignore[reportAttributeAccessIssue]
