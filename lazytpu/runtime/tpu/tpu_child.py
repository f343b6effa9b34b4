"""The process that compiles one module for a TPU: `python tpu_child.py FOLDER`.

`tpu_compiler` runs it by its path. FOLDER holds `request.json` and the module. It writes `answer.json` atomically;
"refused" in it says whether the module or the topology is wrong.
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
    """Answer the request in the folder."""
    request: dict[str, Any] = json.loads((folder / REQUEST).read_text())
    temporary = folder / f"{ANSWER}.part"
    temporary.write_text(json.dumps(_answer(folder, request)))
    temporary.rename(folder / ANSWER)


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
    # The package without its __init__, which would load torch: 2 s of CPU in vain.
    package = types.ModuleType("lazytpu")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["lazytpu"] = package
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]  # Python adds it, unless started with -P or -I
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # libtpu's threads may block the end of the interpreter
