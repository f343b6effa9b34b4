"""Tests that look at the page in a browser are there where Chromium is: on Debian `apt-get install chromium`."""

from __future__ import annotations

import os
import shutil

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

collect_ignore = [] if CHROMIUM else ["test_browser.py"]
