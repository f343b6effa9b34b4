"""Runs the tests of a folder and writes the table; `python -m tools.upstream --help`."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lazytpu import options
from lazytpu.runtime.xla.jax_private import WITHOUT_FUSION_EMITTERS
from tools.children import answers
from tools.upstream import __doc__ as SUMMARY
from tools.upstream import record, table
from tools.upstream.worker import MAX_TESTS_OF_A_FILE

RESULTS = Path("out/upstream.jsonl")
WHOLE = (
    *("test_torch", "test_nn", "test_indexing", "test_view_ops", "test_shape_ops", "test_autograd"),
    *("test_sort_and_select", "test_scatter_gather_ops", "test_type_promotion", "test_tensor_creation_ops"),
    *("test_reductions", "nn/test_convolution", "nn/test_dropout", "nn/test_embedding", "nn/test_pooling"),
    *("nn/test_multihead_attention", "nn/test_packed_sequence"),
)
SAMPLED = (
    *("test_linalg", "test_foreach", "test_unary_ufuncs", "test_binary_ufuncs", "test_modules", "test_optim"),
    *("test_sparse", "test_spectral_ops", "test_complex", "test_dlpack", "test_serialization", "test_dataloader"),
    *("test_masked", "test_segment_reductions"),
)
CHUNK = 400  # tests per job
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    **WITHOUT_FUSION_EMITTERS,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""The results of programs are tested here, not XLA's optimization."""


def main() -> int:
    parser = argparse.ArgumentParser(
        "upstream", description=SUMMARY, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="torch's folder test/, or one with the same files")
    parser.add_argument("--files", default="", help="comma-separated, without .py; all that are known without")
    parser.add_argument("--sample", type=int, default=300, help="tests of each file that is sampled (300)")
    parser.add_argument("--most", type=int, default=0, help="tests of each file at most; 0 for all (0)")
    parser.add_argument("--seed", type=int, default=0, help="chooses samples, and the numbers in the tests (0)")
    parser.add_argument("--processes", type=int, default=2, help="child processes at a time (2)")
    parser.add_argument("--limit", type=float, default=60, help="seconds of processor time that one test may take (60)")
    optimized_help = "compile programs as users do, for tests whose programs run long"
    parser.add_argument("--optimized", action="store_true", help=optimized_help)
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"the results file ({RESULTS})")
    parser.add_argument("--docs", type=Path, help="write the table to this folder's conformance.md")
    parser.add_argument("--note", default="", help="a sentence for the table, for example on limits and commits")
    parser.add_argument("--commit", default=commit(), help="the commit that ran, for the table (the checked out one)")
    asked = parser.parse_args()
    asked.folder = asked.folder.resolve()
    files = asked.files.split(",") if asked.files else [*WHOLE, *SAMPLED]
    files = [f"{name}.py" for name in files if (asked.folder / f"{name}.py").exists()]
    if not files:
        parser.error(f"{asked.folder} has none of these files")
    run(asked, files)
    rows = table.read(asked.results)
    print(table.text(record.entries(rows, asked.seed, asked.commit, asked.note)))
    if asked.docs:
        page = asked.docs / "conformance.md"
        table.write(rows, asked.seed, page, asked.note, forced=not options.on_host, commit=asked.commit)
    return 0


def commit() -> str:
    """The commit of this checkout; empty outside of one."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return found.stdout.strip()


def run(asked: argparse.Namespace, files: Sequence[str]) -> None:
    """Run the tests that the results file does not have yet, in jobs of `CHUNK` tests."""
    asked.results.parent.mkdir(parents=True, exist_ok=True)
    # A test that reached the limit runs again, maybe with a larger one.
    rows = [row for row in table.read(asked.results) if row.get("end") != "hangs"]
    finished_rows = {(row["file"], row["number"]) for row in rows if row["seed"] == asked.seed}
    counts = {row["file"]: row["tests"] for row in rows if row["stage"] == "listed" and row["seed"] == asked.seed}
    lock = threading.Lock()
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
    xla_flags = os.environ.get("XLA_FLAGS", "") if asked.optimized else flags
    # Few programs occur twice; writing them to the cache on disk would take a tenth of the time.
    environment = {"XLA_FLAGS": xla_flags, "OMP_NUM_THREADS": "1", "LAZYTPU_CACHE_DIR": "off"}
    origin = record.origin(asked.commit)
    with asked.results.open("a+b") as written:  # begin a new line after one that a killed run did not complete
        if written.tell() and os.pread(written.fileno(), 1, written.tell() - 1) != b"\n":
            written.write(b"\n")
    with asked.results.open("a") as results, ThreadPoolExecutor(asked.processes) as pool:

        def note(file: str, row: dict[str, Any]) -> None:
            with lock:
                results.write(json.dumps({"file": file, "seed": asked.seed, **origin, **row}) + "\n")
                results.flush()

        def job(numbers: Sequence[int]) -> None:
            command = [sys.executable, "-m", "tools.upstream.worker", str(asked.folder), ",".join(files)]
            command.append(str(asked.seed))
            for answer in answers(numbers, lambda chunk: [*command, chunk], asked.limit, environment):
                if answer["stage"] == "tpu":  # it crashed or reached the limit, before its control ran
                    only = [answer["number"]]
                    (control,) = answers(only, lambda one: [*command, one, "control"], asked.limit, environment)
                    answer |= {"control": control.get("control", "none")}
                index, number = divmod(int(answer["number"]), MAX_TESTS_OF_A_FILE)
                note(files[index], {**answer, "number": number})

        for listing in collect(asked, [file for file in files if file not in counts]):
            if "error" in listing:
                print(f"{listing['file']} cannot be imported: {listing['error']}", file=sys.stderr)
                continue
            counts[listing["file"]] = listing["tests"]
            note(listing["file"], {"number": -1, "stage": "listed", "tests": listing["tests"]})
        chosen = [
            MAX_TESTS_OF_A_FILE * index + number
            for index, file in enumerate(files)
            for number in choose(asked, file, counts.get(file, 0))
            if (file, number) not in finished_rows
        ]
        for done in [pool.submit(job, chosen[i : i + CHUNK]) for i in range(0, len(chosen), CHUNK)]:
            done.result()


def collect(asked: argparse.Namespace, files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield how many tests each file has: `file`, and `tests` or `error`."""
    if files:
        command = [sys.executable, "-m", "tools.upstream.worker", str(asked.folder), ",".join(files), "0", "list"]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        listings = [json.loads(line) for line in child.stdout.splitlines() if line.startswith('{"file"')]
        yield from listings
        for file in set(files) - {listing["file"] for listing in listings}:
            yield {"file": file, "error": child.stderr[-300:]}


def choose(asked: argparse.Namespace, file: str, count: int) -> list[int]:
    """The numbers of the tests to run, in order. A larger sample of the same seed contains a smaller one."""
    most = asked.sample if file.removesuffix(".py") in SAMPLED else asked.most or count
    shuffled = list(range(count))
    random.Random(f"{asked.seed} {file}").shuffle(shuffled)
    return sorted(shuffled[:most])


if __name__ == "__main__":
    sys.exit(main())
