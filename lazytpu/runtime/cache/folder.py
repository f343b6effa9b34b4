"""The folder of the cache, and its safety check: this process runs machine code that it finds there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

DEFAULT = Path("~/.cache/lazytpu")
ENTRIES, LOCKS, TEMPORARY, LEDGER, TAG = "entries", "locks", "temporary", "ledger", "CACHEDIR.TAG"
SPEEDS = "speeds"  # the measured compile speeds: see `lazytpu.runtime.cache.speeds`
PRIVATE = 0o700  # for its owner alone: programs of a folder that others can write would be run

# The tag (https://bford.info/cachedir) by which backup programs skip a folder whose contents can be recomputed.
_TAG_TEXT = "Signature: 8a477f597d28d172789f06886806bc55\n# Programs compiled by lazytpu.\n"


class UnsafeFolder(OSError):
    """Other users can write, or could have written, into the folder."""


def located(folder: Path) -> Path:
    """Return the absolute path of a cache folder. The default folder is $XDG_CACHE_HOME/lazytpu where that variable is
    set.

    Raises:
        OSError: there is no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if folder == DEFAULT and os.path.isabs(base):  # the specification ignores relative paths
        return Path(base) / "lazytpu"
    try:
        return folder.expanduser().absolute()
    except RuntimeError as error:
        raise OSError(f"{folder}: {error}") from error


def check(root: Path) -> str | None:
    """Check that an existing folder belongs to this user and is closed to others. Return a message if its mode was
    corrected.

    Raises:
        UnsafeFolder: it belongs to another user, or it is open to others and holds other files than the cache's.
        OSError: its status cannot be read, or it is no folder.
    """
    status = os.stat(root)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{root} is not a folder")
    if status.st_uid != os.geteuid():
        raise UnsafeFolder(f"{root} belongs to user {status.st_uid}, and programs are only run from your own folder")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~PRIVATE == 0:
        return None
    others = {entry.name for entry in os.scandir(root)} - {ENTRIES, LOCKS, TEMPORARY, LEDGER, TAG, SPEEDS}
    if others:
        raise UnsafeFolder(
            f"{root} is open to others (mode {mode:04o}), and more than the cache is in it ({sorted(others)[0]}): "
            f"name a folder of its own, such as {root / 'lazytpu'}"
        )
    os.chmod(root, PRIVATE)
    if mode & 0o022:
        return f"{root} could be written by others (mode {mode:04o}); it is private now, and their files are not used"
    return None


def make(root: Path) -> None:
    """Create the folder, closed to others, unless it exists. Raises OSError."""
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(PRIVATE, exist_ok=True)


def fill(root: Path) -> None:
    """Create the missing folders and the tag in the folder. Raises OSError."""
    for name in (ENTRIES, LOCKS, TEMPORARY):
        (root / name).mkdir(PRIVATE, exist_ok=True)
    tag = root / TAG
    if not tag.exists():
        tag.write_text(_TAG_TEXT)
