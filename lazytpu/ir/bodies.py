"""The bodies of custom kernels: the computation of a `lazytpu.jax_call`, for each platform that it was lowered for.

The key of a body is the kernel's name and a digest of its contents, so equal keys mean equal bodies in every process.
In the text of a module, bodies are resources of the dialect, after the ops, each one once:

    %1 = lazytpu.jax_call softmax_3fa9c1d2e4b5a697 %x : tensor<8x128xf32>
    {-# dialect_resources: { lazytpu: { softmax_3fa9c1d2e4b5a697: "0x789c…" } } #-}

So a text is complete: it can be lowered without the Python function. Where that function is available, it provides the
body for another platform.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable

from xdsl.dialect_interfaces.op_asm import OpAsmDialectInterface

_BODIES: dict[str, dict[str, bytes]] = {}
_MAKERS: dict[str, Callable[[str], bytes]] = {}


def provide(key: str, platform: str, body: bytes, make: Callable[[str], bytes] | None = None) -> None:
    """Register a body. `make(platform)` returns the body for another platform, or raises ValueError."""
    _BODIES.setdefault(key, {}).setdefault(platform, body)
    if make is not None:
        _MAKERS.setdefault(key, make)


def body(key: str, platform: str) -> bytes:
    """Return the body of a kernel for a platform ("cpu", "tpu", "gpu"). Raises ValueError when there is none."""
    bodies = _BODIES.get(key, {})
    if platform not in bodies:
        make = _MAKERS.get(key)
        if make is None:
            hint = f"this text has it for {', '.join(bodies)}" if bodies else "the module text had no body for it"
            raise ValueError(
                f"there is no body of the kernel {key} for {platform!r}: {hint}. Dump the program in a process that "
                f"calls the kernel and runs on, or reports for, {platform!r}"
            )
        provide(key, platform, make(platform))
    return _BODIES[key][platform]


class BodyResources(OpAsmDialectInterface):
    """Bodies as resources in the text of a module: the compressed JSON of a body for each platform."""

    def declare_resource(self, key: str) -> str:
        return key

    def parse_resource(self, key: str, val: str) -> None:
        if not val.startswith("0x"):
            raise ValueError(f"expected a body in hexadecimal digits after 0x, got {val[:20]!r}")
        try:
            parsed = json.loads(zlib.decompress(bytes.fromhex(val[2:])))
            bodies = {str(platform): bytes.fromhex(text) for platform, text in parsed.items()}
        except (ValueError, AttributeError, TypeError, zlib.error) as error:
            raise ValueError(f"the body of {key} is damaged: {error}") from error
        for platform, content in bodies.items():
            provide(key, platform, content)

    def lookup(self, key: str) -> str | None:
        bodies = _BODIES.get(key)
        if not bodies:
            return None
        text = json.dumps({platform: bodies[platform].hex() for platform in sorted(bodies)})
        return "0x" + zlib.compress(text.encode(), 9).hex()

    def build_resources(self, keys: Iterable[str]) -> dict[str, str]:
        return {key: text for key in keys if (text := self.lookup(key)) is not None}
