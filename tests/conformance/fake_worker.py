"""A worker process of a sweep without ops: it answers, dies or hangs, by the name of the job."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection


def work(pipe: Connection) -> None:
    pipe.send(None)
    while True:
        try:
            op, dtype, k, seed = pipe.recv()
        except EOFError:
            return
        if op == "dies":
            os._exit(3)
        if op == "hangs":
            time.sleep(100)
        pipe.send({"op": op, "dtype": dtype, "k": k, "seed": seed, "checks": {"forward": [1, 1]}, "failures": []})
