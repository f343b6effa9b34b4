"""Limits of cases in child processes."""

from __future__ import annotations

import sys

from tools.children import answers

CHILD = """
import json, sys, time
print(json.dumps({"number": -1, "stage": "done"}), flush=True)
for number in sys.argv[1].split(","):
    print(json.dumps({"number": int(number), "stage": "started"}), flush=True)
    if number == "0":
        time.sleep(1.2)  # as on a busy machine
    while number == "1":
        pass
    print(json.dumps({"number": int(number), "stage": "done"}), flush=True)
"""


def test_limit_is_one_of_processor_time() -> None:
    rows = answers([0, 1, 2], lambda numbers: [sys.executable, "-c", CHILD, numbers], 0.4)
    ends = {row["number"]: row.get("end") for row in rows}
    assert ends == {-1: None, 0: None, 1: "hangs", 2: None}
