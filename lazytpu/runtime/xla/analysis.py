"""XLA's memory analysis of an executable."""

from __future__ import annotations

from dataclasses import dataclass

from lazytpu.runtime.xla.client import Executable


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory of one executable in bytes, by XLA's own analysis."""

    arguments: int
    outputs: int
    aliased: int
    """Bytes of the outputs that share the memory of donated arguments."""
    temporaries: int
    code: int

    @property
    def peak(self) -> int:
        """Bytes needed during a run: arguments, outputs that are not aliased, and temporaries."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def memory_of(executable: Executable) -> Memory:
    """Return XLA's memory analysis of an executable."""
    stats = executable.get_compiled_memory_stats()
    return Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
    )
