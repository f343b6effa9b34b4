"""Scripts that run for the sake of their programs: `lazytpu-show pack --kernels`.

Each script runs twice: as users run it, for the programs of its steps; and in strict mode, for a program of each op and
kernel, which serve other steps of the same layers. No step runs op by op or on the host while a program is compiled, so
which programs there are does not depend on the speed of this machine.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from lazytpu.passes.target import Target
from lazytpu.runtime.cache.store import Store
from lazytpu.runtime.children import run_python

HERE = "cpu"
"""The chip that stands for the processor of this machine."""
MODES = {"": {}, " op by op": {"LAZYTPU_MODE": "strict"}}
"""The runs of a script: their names, and the settings that differ from the user's."""
ALONE = {"LAZYTPU_PLATFORM": "cpu", "LAZYTPU_BACKGROUND_COMPILE": "0", "LAZYTPU_CACHE_LIMIT": "0"}


def check(commands: Sequence[str]) -> None:
    """Raise ValueError for a command that cannot be run."""
    for command in commands:
        try:
            arguments = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"--run {command}: {error}") from error
        if not arguments:
            raise ValueError("--run takes a script and its arguments, or -m and a module, and got nothing")


def stored(commands: Sequence[str], folder: Path) -> Store:
    """Run scripts on this machine's processor, and return the cache of their programs, which is in `folder`. Raises
    ValueError for a script that fails."""
    cache = folder / "cache"
    for command, (name, mode) in product(commands, MODES.items()):
        _run(command, name, {**ALONE, "LAZYTPU_CACHE_DIR": str(cache), **mode})
    return Store(cache)


def dumped(commands: Sequence[str], topology: str, folder: Path) -> list[Path]:
    """Run scripts on this machine's processor, and return the folders in `folder` to which they dumped their programs
    for a TPU. Raises ValueError for a script that fails, and for an unknown TPU."""
    target, dumps = Target.parse(topology), list[Path]()
    if target.generation is None:
        raise ValueError(f"--kernels takes a TPU, such as v6e or v6e:2x2, or {HERE}, not {topology}")
    for command, (name, mode) in product(commands, MODES.items()):
        dumps.append(folder / str(len(dumps)))
        dumping = {"LAZYTPU_CACHE_DIR": "off", "LAZYTPU_DUMP": str(dumps[-1]), "LAZYTPU_TARGET": str(target)}
        _run(command, name, {**ALONE, **dumping, **mode})
    return dumps


def _run(command: str, name: str, variables: dict[str, str]) -> None:
    """Run a command of Python with these variables. Raises ValueError with the end of its output if it fails."""
    print(f"running {command}{name}", flush=True)
    inherited = {key: value for key, value in os.environ.items() if key not in ("LAZYTPU_DUMP", "LAZYTPU_TARGET")}
    done = _python(shlex.split(command), {**inherited, **variables})
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-20:])
        raise ValueError(f"{command}{name} ended with status {done.returncode}:\n{last}")


def _python(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python without input, and return the status and the errors, whatever their encoding.

    A process that the script leaves behind would keep a pipe open, and the end of a script would not be noticed.
    """
    with tempfile.TemporaryFile() as errors:
        status = run_python(arguments, environment, subprocess.DEVNULL, errors)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, status, "", errors.read().decode(errors="replace"))
