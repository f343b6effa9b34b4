"""The commands of the conformance suite; `python -m tools.conformance --help`."""

from __future__ import annotations

import argparse
import random
import sys
from functools import partial
from pathlib import Path

from lazytpu.inspection.highlight import console
from tools.conformance import __doc__ as SUMMARY
from tools.conformance.rows import CHIPS, LOWERED

RESULTS = Path("out/conformance.jsonl")
COMPILED = Path("out/compiled")
PADDED = Path("out/padding.jsonl")
VARIED = Path("out/arguments.jsonl")
LARGE = Path("out/large.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(
        "conformance", description=SUMMARY, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("sweep", help="run what the results file does not have yet")
    run.add_argument("-k", type=int, default=10, help="samples of each op in float32 at most; 0 for all (10)")
    run.add_argument("-j", type=int, default=3, help="samples of each op at each other dtype at most (3)")
    column = commands.add_parser("compile", help="compile the programs of each op for a chip that is not here")
    column.add_argument("chip", choices=(*CHIPS, *LOWERED), help="a TPU, or a GPU, for which programs are lowered only")
    column.add_argument("-k", type=int, default=3, help="samples of different structure at most (3)")
    sizes = commands.add_parser("padding", help="run samples at three sizes, with one program for all of them")
    sizes.add_argument("-k", type=int, default=2, help="samples of each op that have a size to scale at most (2)")
    integers = commands.add_parser("arguments", help="vary each integer argument of each op in one process")
    integers.add_argument("-k", type=int, default=2, help="samples of each op that have an integer at most (2)")
    large = commands.add_parser("large", help="run samples at sizes of work, with special values, by their errors")
    large.add_argument("-k", type=int, default=2, help="samples of each op at each dtype at most (2)")
    large.add_argument("--page", type=Path, help="write the table of all results there")
    for command in (run, column, sizes, integers, large):
        command.add_argument("--dtypes", default="", help="comma-separated; all nine without")
        command.add_argument("--only", default="", help="only ops whose name has a match of this regular expression")
        command.add_argument("--every", type=int, default=1, help="only one of so many ops at a dtype, by the seed (1)")
        command.add_argument("--seed", type=int, default=0, help="other values (0)")
        command.add_argument("--processes", type=int, default=2, help="worker processes (2)")
        command.add_argument("--limit", type=float, default=240, help="seconds that one op may take at one dtype (240)")
        command.add_argument("--quiet", action="store_true", help="no progress bar")
    show = commands.add_parser("show", help="what failed, with the reasons that are known")
    table = commands.add_parser("table", help="write the published table")
    table.add_argument("--docs", type=Path, default=Path("docs"), help="where conformance.md and .json go (docs)")
    files = {run: RESULTS, show: RESULTS, table: RESULTS, sizes: PADDED, integers: VARIED, large: LARGE}
    for command, file in files.items():
        command.add_argument("--results", type=Path, default=file, help=f"the results file ({file})")
    table.add_argument("--padded", type=Path, default=PADDED, help=f"results of the command padding ({PADDED})")
    for command in (column, table):
        command.add_argument("--compiled", type=Path, default=COMPILED, help=f"a results file per chip ({COMPILED})")
    asked = parser.parse_args()
    if asked.command in ("sweep", "compile", "padding", "arguments", "large"):
        return _sweep(asked)
    from tools.conformance import report

    if asked.command == "show":
        return report.show(asked.results)
    return report.write(asked.results, asked.compiled, asked.padded, asked.docs)


def _sweep(asked: argparse.Namespace) -> int:
    from tools.conformance import rows
    from tools.conformance.sweep import jobs_of, sweep, work

    allowed = rows.LARGE if asked.command == "large" else rows.DTYPES
    dtypes = tuple(asked.dtypes.split(",")) if asked.dtypes else allowed
    unknown = set(dtypes) - set(allowed)
    if unknown:
        print(f"no such dtype: {', '.join(sorted(unknown))}; there are {', '.join(allowed)}", file=sys.stderr)
        return 2
    infos = None
    if asked.command == "compile":
        from tools.conformance import compiling

        compiling.prepare()
        samples, results = {"": asked.k}, asked.compiled / f"{asked.chip}.jsonl"
        role = partial(compiling.work, chip=asked.chip)
    elif asked.command in ("padding", "arguments"):
        from tools.conformance import arguments, padding

        role = padding.work if asked.command == "padding" else arguments.work
        samples, results = {"": asked.k}, asked.results
    elif asked.command == "large":
        from tools.conformance import large

        samples, results, role, infos = {"": asked.k}, asked.results, large.work, large.infos()
    else:
        samples, results, role = {"float32": asked.k, "": asked.j}, asked.results, work
    jobs = jobs_of(dtypes, asked.only, samples, asked.seed, infos)[asked.seed % asked.every :: asked.every]
    if asked.command == "large":  # it takes hours: results so far are a sample of all
        random.Random(asked.seed).shuffle(jobs)
    failed = sweep(jobs, results, asked.processes, asked.limit, asked.quiet, role)
    if asked.command == "large" and asked.page:
        from tools.conformance import large_table

        large_table.write(results, asked.page)
    console().print(f"{len(jobs):,} entries are in {results}; {failed} of those just run failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
