"""`python -m tools.reference` writes docs/ir.md; with `--check` it only reports whether the page is up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.reference.page import page

PAGE = Path(__file__).resolve().parents[2] / "docs/ir.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the page is out of date")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE.name} is out of date: run make ir", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
