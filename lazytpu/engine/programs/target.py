"""The target for which this process compiles programs."""

from __future__ import annotations

from lazytpu.options import options
from lazytpu.passes.generations import generation_of
from lazytpu.passes.target import PLATFORMS, Target
from lazytpu.runtime.tpu.tpu_compiler import installed
from lazytpu.runtime.xla import client


def untunable() -> str | None:
    """Return why programs of this process cannot be tuned (`compiling.tuning`); None if they can."""
    made_for = target()
    if made_for.platform != "tpu" or made_for.generation is None:
        return f"programs are made for the {made_for}, and what is tuned is the passes for a TPU"
    return None if installed() else "libtpu, the TPU's compiler, by whose estimates it would choose, is not installed"


def target() -> Target:
    """Return the target of the passes: `options.target`, or the device on which programs run."""
    if options.target is not None:
        return Target.parse(options.target)
    platform = client.platform()
    if platform == "tpu":
        return Target(platform, generation_of(str(client.devices()[0].device_kind)))
    return Target(platform if platform in PLATFORMS else "cpu")  # a plugin's platform gets the common passes
