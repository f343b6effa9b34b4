"""One table of what the benchmarks found.

    python benchmarks/table.py out/bench                                  # shows it
    python benchmarks/table.py out/bench --write docs/performance.md      # and puts it between the markers there
    python benchmarks/table.py out/bench --write docs/scale.md            # those of large jobs

FOLDER holds the files that the benchmarks wrote with --json. Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Row, figure, table, target

from lazytpu.inspection.highlight import console

BEGIN, END = "<!-- figures: python benchmarks/table.py --write docs/{} -->", "<!-- end of figures -->"
LARGE_JOBS = "joining", "control_plane"  # on docs/scale.md
ORDER = (
    "recording",
    "compiled",
    "cuts",
    "strict",
    "overlap",
    "cache",
    "control_flow",
    "memory",
    "data_parallel",
    "first_minute",
)


def load(folder: Path) -> list[dict[str, Any]]:
    """What the benchmarks wrote, in the order of the table. Raises SystemExit when there is nothing."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise SystemExit(f"{folder} holds no results: run `make bench`, or a benchmark with --json {folder}/NAME.json")
    names = [*ORDER, *(result["benchmark"] for result in results)]
    return sorted(results, key=lambda result: names.index(result["benchmark"]))


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table for the docs."""
    lines = ["| benchmark | measure | figure | target | |", "|---|---|---:|---:|---|"]
    for result in (result for result in results if not result.get("wide")):
        for row in (Row(**row) for row in result["rows"]):
            verdict = "" if row.target is None else "met" if row.met else "**missed**"
            lines.append(f"| {result['benchmark']} | {row.measure} | {figure(row)} | {target(row)} | {verdict} |")
    for result in (result for result in results if result.get("wide")):
        lines += ["", *_wide(result)]
    about = results[0]["machine"]
    lines += ["", f"{about['cpu']}, {about['cores']} cores; Python {about['python']}, torch {about['torch']}, "]
    lines[-1] += f"jaxlib {about['jaxlib']}; {about['date']}."
    return "\n".join(lines)


def _wide(result: dict[str, Any]) -> list[str]:
    """The table of a benchmark whose measures are "thing: column". What misses its target is bold."""
    cells: dict[str, dict[str, str]] = {}
    columns: dict[str, None] = {}
    for row in (Row(**row) for row in result["rows"]):
        thing, _, column = row.measure.partition(": ")
        cells.setdefault(thing, {})[column] = figure(row) if row.met else f"**{figure(row)}**"
        columns[column] = None
    lines = [f"| {result['benchmark']} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    return lines + [f"| {thing} | {' | '.join(row.get(c, '') for c in columns)} |" for thing, row in cells.items()]


def write(page: Path, text: str) -> None:
    """Put `text` between the markers of a page. Raises SystemExit when it has none."""
    before, begin = page.read_text(), BEGIN.format(page.name)
    after, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(END)}", lambda _: f"{begin}\n{text}\n{END}", before, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"{page} needs the lines\n{begin}\n{END}\nonce, around where the table goes")
    page.write_text(after)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("out/bench"), help="default: out/bench")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="a Markdown page with the markers")
    args = parser.parse_args()
    results = load(args.folder)
    expected = ORDER
    if args.write is not None and args.write.name == "scale.md":
        expected = LARGE_JOBS
        results = [result for result in results if result["benchmark"] in LARGE_JOBS]
    rows = [(result["benchmark"], Row(**row)) for result in results for row in result["rows"]]
    console().print(table(rows))
    missing = [name for name in expected if name not in {name for name, _ in rows}]
    if missing:
        print(f"no figures of {', '.join(missing)}")
    if args.write is not None:
        if any(result["quick"] for result in results):
            raise SystemExit(f"{args.folder} holds figures of --quick runs, which are not for a page")
        write(args.write, markdown(results))
    return 0 if all(row.met for _, row in rows) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
