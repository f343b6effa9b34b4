"""`lazytpu-show cache`: what is in the cache on disk, as a table, the last used first."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.table import Table

from lazytpu.inspection.highlight import console
from lazytpu.options import options
from lazytpu.runtime.cache.files import Listed
from lazytpu.runtime.cache.store import Store, store


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `cache` to a parser of commands."""
    made = commands.add_parser("cache", help="list, verify or clear the cache of compiled programs")
    made.add_argument("--dir", type=Path, metavar="DIR", help="the folder (default: that of LAZYTPU_CACHE_DIR)")
    action = made.add_mutually_exclusive_group()
    action.add_argument("--verify", action="store_true", help="read every entry, and remove the damaged ones")
    action.add_argument("--clear", action="store_true", help="remove every entry")
    made.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """The command; returns 1 when `--verify` found damage."""
    with options(cache_dir=options.cache_dir if asked.dir is None else asked.dir):
        kept = store()
        if kept.root is None:
            raise ValueError("there is no cache on disk: LAZYTPU_CACHE_DIR is empty or off")
        if asked.clear:
            return _say(0, f"removed {_entries(kept.clear())} from {kept.root}")
        if asked.verify:
            return _verify(kept)
        return _list(kept)


def _list(kept: Store) -> int:
    found, now = kept.entries(), time.time()
    if found:
        table = Table("key", "kind", "program", "age", "size", "last use", "hits", box=None, pad_edge=False)
        for column in table.columns[3:]:
            column.justify = "right"
        for each in reversed(found):
            table.add_row(*_row(each, now))
        console().print(table)
    total, limit = sum(each.size for each in found), options.cache_limit
    return _say(0, f"{_entries(len(found))}, {size(total)} of {size(limit) if limit else 'no limit'}, in {kept.root}")


def _row(each: Listed, now: float) -> tuple[str, ...]:
    if each.damage is not None:
        return each.key[:12], each.kind, f"damaged: {each.damage}", "", size(each.size), age(now - each.used), ""
    name = str(each.about.get("name", ""))
    return (
        each.key[:12],
        each.kind,
        name,
        age(now - each.created),
        size(each.size),
        age(now - each.used),
        f"{each.hits:,}",
    )


def _verify(kept: Store) -> int:
    count = len(kept.entries())
    damaged = kept.verify()
    for each in damaged:
        _say(1, f"removed {each.kind} {each.key[:12]}: {each.damage}")
    return _say(int(bool(damaged)), f"{_entries(count)} read, {len(damaged):,} damaged, in {kept.root}")


def _say(status: int, text: str) -> int:
    console().print(text, markup=False, highlight=False, soft_wrap=True)
    return status


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def age(seconds: float) -> str:
    """A time span in its largest unit: 7 s, 12 min, 3 h, 5 days."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds / length):,} {unit}"
    return f"{max(0, int(seconds))} s"


def size(count: float) -> str:
    """Bytes in the unit that gives up to four digits."""
    for unit in ("B", "kB", "MB"):
        if count < 10_000:
            return f"{count:,.0f} {unit}"
        count /= 1000
    return f"{count:,.0f} GB"
