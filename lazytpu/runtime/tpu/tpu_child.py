"""The process that compiles one module for a TPU: `python tpu_child.py FOLDER`.

Run by its path, by `tpu_compiler`. FOLDER holds `request.json` and the module; the answer is written
there as `answer.json`, whole or not at all, and what is wrong with the module or the topology in it as "refused".
"""

from __future__ import annotations

import base64
import json
import os
import sys
import types
from dataclasses import asdict
from pathlib import Path
from time import process_time
from typing import Any

MODULE, REQUEST, ANSWER, DUMP = "module.mlir", "request.json", "answer.json", "dump"


def main(folder: Path) -> None:
    """Answer the request that lies in the folder."""
    request: dict[str, Any] = json.loads((folder / REQUEST).read_text())
    beside = folder / f"{ANSWER}.part"
    beside.write_text(json.dumps(_answer(folder, request)))
    beside.rename(folder / ANSWER)


def _answer(folder: Path, request: dict[str, Any]) -> dict[str, Any]:
    from lazytpu.runtime.errors import CompileError, PlatformError
    from lazytpu.runtime.tpu import topologies
    from lazytpu.runtime.xla.client import mlir_context
    from lazytpu.runtime.xla.mlir import ir

    try:
        topologies.aim_at(request["topology"])
        with mlir_context():
            text = (folder / MODULE).read_bytes()
            module = ir.Module.parse(text)
            start = process_time()
            scheduled = topologies.compile_scheduled(
                module,
                name=request["name"],
                partitions=request["partitions"],
                shardy=b"sdy" in text,
                options=request["options"],
                dump=folder / DUMP,
            )
            seconds, proto = process_time() - start, base64.b64encode(scheduled.proto).decode()
            return {**asdict(scheduled), "seconds": seconds, "proto": proto}
    except PlatformError as error:
        return {"refused": "topology", "reason": str(error)}
    except (CompileError, ir.MLIRError) as error:
        return {"refused": "module", "reason": getattr(error, "reason", str(error))}


if __name__ == "__main__":
    # The package without its __init__, which loads torch: 2 s of CPU for nothing.
    package = types.ModuleType("lazytpu")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["lazytpu"] = package
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]  # it is there but in a Python that is told not to
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # libtpu's threads may not let the interpreter end
