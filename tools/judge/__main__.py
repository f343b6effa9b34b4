"""The table of the passes' gains.

python -m tools.judge                         all cases, about an hour
python -m tools.judge small-tensors llama     these cases
python -m tools.judge ddp --topology v6e:4x4  this case for other chips
python -m tools.judge --write docs/passes.md  the table into the page, from the results file
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from lazytpu.inspection.highlight import console
from tools.judge.page import TOPOLOGY, table, table_by_chip, write


def main() -> int:
    """Run the requested cases; return the exit status."""
    parser = argparse.ArgumentParser(
        "python -m tools.judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--topology", default=TOPOLOGY, help="what to compile for (%(default)s)")
    parser.add_argument("--results", type=Path, default=Path("docs/judge.json"), help="where figures are kept")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="only put the table between its markers")
    asked = parser.parse_args()
    results = json.loads(asked.results.read_text()) if asked.results.exists() else {}
    if asked.write is not None:
        write(asked.write, results)
        return 0
    _run(asked, results)
    console().print(table(results), table_by_chip(results), sep="\n\n", markup=False)
    return 0


def _run(asked: argparse.Namespace, results: dict[str, object]) -> None:
    import lazytpu
    from tools.judge.cases import CASES
    from tools.judge.measure import judge

    unknown = set(asked.cases) - CASES.keys()
    if unknown:
        sys.exit(f"there is no case {', '.join(sorted(unknown))}; the cases are {', '.join(CASES)}")
    lazytpu.set_mode("lazy")  # a rehearsed step is one program
    for name in asked.cases or CASES:
        figures_of_case = []
        for figures in judge(name, CASES[name], asked.topology):
            print(f"{name}: {figures}", file=sys.stderr)
            figures_of_case.append(figures.as_dict())
        key = name if asked.topology == TOPOLOGY else f"{name} on {asked.topology}"
        results[key] = {"about": CASES[name].about, "topology": asked.topology, "figures": figures_of_case}
        asked.results.parent.mkdir(parents=True, exist_ok=True)
        partial = asked.results.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(results, indent=1))
        partial.replace(asked.results)


if __name__ == "__main__":
    sys.exit(main())
