"""Tests of the page in a browser run where Chromium is installed: on Debian `apt-get install chromium`."""

from __future__ import annotations

import os
import shutil

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

collect_ignore = [] if CHROMIUM else ["test_browser.py"]
