"""One rank of the tests: runs cases until its connection is closed. `worker.py SOCKET`."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import socket
import sys
import traceback
from typing import Any

import torch.distributed as dist

from lazytpu.distributed import starting
from lazytpu.runtime.cache import programs
from tests.compiling import QUICK


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one request: the result of the case, or its error."""
    try:
        case = getattr(importlib.import_module(request["module"]), request["case"])
        return {"result": case(**request["arguments"])}
    except BaseException:  # noqa: BLE001  (the test raises it)
        return {"error": traceback.format_exc()}


def main(path: str) -> None:
    programs.OPTIONS.update(QUICK)
    if "FAN_IN" in os.environ:
        starting.FAN_IN = starting.DIRECT = int(os.environ["FAN_IN"])
    dist.init_process_group(timeout=datetime.timedelta(seconds=60))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rw") as lines:
            lines.write(json.dumps({"rank": dist.get_rank()}) + "\n")
            lines.flush()
            for line in lines:
                lines.write(json.dumps(run(json.loads(line))) + "\n")
                lines.flush()


if __name__ == "__main__":
    main(sys.argv[1])
