"""Ahead-of-time compilation: compile the programs of dumps for a TPU topology that this machine does not have.

A separate process does this (`compile_dumps`), since it aims XLA's client at the topology and can run nothing
afterwards. The usual code computes the keys. So they equal the keys on such a machine, as long as libtpu describes a
topology identically with and without its devices.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from lazytpu.runtime.cache import programs, translation
from lazytpu.runtime.cache.store import Store
from lazytpu.runtime.children import run_python
from lazytpu.runtime.errors import CompileError, PlatformError
from lazytpu.runtime.tpu import topologies
from lazytpu.runtime.tpu.topology import full_name
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.signature import signature

# Do not look for a TPU, here or at Google's metadata server. Other processes may have libtpu loaded.
_ALONE = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_NO_TOPOLOGY = 3  # an exit status that neither Python nor a signal gives


def compile_dumps(topology: str, dumps: Sequence[Path], into: Path) -> list[str]:
    """Compile the programs of folders that LAZYTPU_DUMP wrote into the cache `into`, for a topology such as "v6e:2x2"
    or "v6e", in a separate process. Return a line on the outcome of each program; a program of several traces is
    compiled once. The flags of XLA_FLAGS and LIBTPU_INIT_ARGS are those of this process.

    Raises PlatformError when libtpu is not installed or does not know the topology, and ValueError for a folder without
    programs.
    """
    for dump in dumps:
        if not any(dump.glob("*.json")):
            raise ValueError(f"{dump} holds no programs; run the script with LAZYTPU_DUMP={dump} to have some")
    arguments = ["-m", "lazytpu.runtime.tpu.ahead", full_name(topology), str(into), *map(str, dumps)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        status = run_python(arguments, {**os.environ, **_ALONE}, output, errors)
        printed, reported = (_text(file) for file in (output, errors))
    if status == _NO_TOPOLOGY:
        raise PlatformError(printed.strip())
    if status:
        last = "\n".join(reported.splitlines()[-20:])
        raise RuntimeError(f"compiling for {topology} failed, with status {status}:\n{last}")
    return printed.splitlines()


def _text(file: IO[bytes]) -> str:
    """Return all text of a file, whatever its encoding."""
    file.seek(0)
    return file.read().decode(errors="replace")


def main(arguments: Sequence[str]) -> int:
    """Run the process with the arguments TOPOLOGY CACHE DUMP..."""
    topology, into, *dumps = arguments
    try:
        topologies.aim_at(topology)
    except PlatformError as error:
        print(error)
        return _NO_TOPOLOGY
    for dump in dumps:
        for path in sorted(Path(dump).glob("*.json")):
            print(_compile(path, Store(Path(into))), flush=True)
    return 0


def _compile(path: Path, into: Store) -> str:
    """Compile one program, and return a line on its outcome."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        text = path.with_suffix(".stablehlo.mlir").read_text()
        if "refused" in fields:
            return f"{path.stem}: not compiled: {str(fields['refused']).partition(chr(10))[0]}"
        if fields["translators"] != translation.translators():
            return f"{path.stem}: not compiled: another lazytpu, or other libraries under it, wrote it"
        if fields["stablehlo"] != hashlib.sha256(text.encode()).hexdigest():
            return f"{path.stem}: not compiled: its StableHLO is not what was written with it"
        name, about = str(fields["name"]), (fields["content"], fields["records"], fields["entry"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path.stem}: not compiled: it is no dump of lazytpu's ({error!r})"
    with client.mlir_context():
        module = ir.Module.parse(text)
        described = signature(module)
    key, outcome = programs.program_key(module), "compiled before"
    if not into.has(programs.KIND, key):
        start = time.perf_counter()
        try:
            payload = topologies.compile_ahead(module, name=name, options=programs.OPTIONS)
        except CompileError as error:
            return f"{path.stem}: not compiled: {error.reason.splitlines()[0]}"
        elapsed = 1e3 * (time.perf_counter() - start)
        into.put(programs.KIND, key, payload, programs.describe(name, described, (), elapsed))
        outcome = f"{len(payload):,} bytes, compiled in {elapsed:,.0f} ms"
    content, records, entry = about
    data = json.dumps({**entry, "program": key}, separators=(",", ":")).encode()
    into.put(translation.KIND, translation.trace_key(content), data, translation.describe(name, records, key))
    return f"{path.stem}: {outcome}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
