"""The process that runs checks: `python -m lazytpu.doctor.child ANSWERS [MODULE...]`.

It reads the checks to run from standard input, one line of JSON each: its key and its limit in seconds. It writes each
result to the file descriptor ANSWERS, also as a line of JSON. The output of checks and libraries goes to the standard
streams, which the parent captures.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from lazytpu.doctor.check import DoctorCheck, load
from lazytpu.doctor.outcome import BROKEN, MISSING, WORKS


def main(arguments: Sequence[str]) -> None:
    """Answer until standard input ends."""
    faulthandler.enable()  # a crash prints its Python stack
    checks = load(arguments[1:])
    with os.fdopen(int(arguments[0]), "w", buffering=1) as answers:
        answers.write(f"{json.dumps(_answer(WORKS, 'ready', 0))}\n")
        for line in sys.stdin:
            key, limit = json.loads(line)
            faulthandler.dump_traceback_later(limit)  # a hang prints it, too, just before the parent kills this process
            answer = run(checks[key])
            faulthandler.cancel_dump_traceback_later()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            answers.write(f"{json.dumps(answer)}\n")


def run(check: DoctorCheck) -> dict[str, Any]:
    """Run a check and return its result."""
    start = perf_counter()
    try:
        status, detail = WORKS, check.run()
    except NotImplementedError as refusal:
        status, detail = MISSING, _one_line(refusal)
    except BaseException as error:  # noqa: BLE001  (a library may raise SystemExit)
        status, detail = BROKEN, f"{type(error).__name__}: {_one_line(error)}"
        traceback.print_exc()
    return _answer(status, detail, perf_counter() - start)


def _answer(status: str, detail: str, seconds: float) -> dict[str, Any]:
    return {"status": status, "detail": detail, "seconds": seconds}


def _one_line(error: BaseException) -> str:
    """An exception's message, in one line."""
    return " ".join(str(error).split())


if __name__ == "__main__":
    main(sys.argv[1:])
