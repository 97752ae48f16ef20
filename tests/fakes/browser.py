# SPDX-License-Identifier: Apache-2.0
"""Looks at a page in a headless browser."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom")
# A headless browser draws no frames when it is busy, but it keeps its timers.
TIMERS = "window.requestAnimationFrame = (draw) => setTimeout(draw, 0);"


def look_at(path, choice="", script=""):
    """The document after a while, and what the console said; skips the test where there is no browser.

    Args:
        path: of the page, which is changed: `script` runs at its end.
        choice: what stands behind the # of the address.
        script: JavaScript.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    text = path.read_text(encoding="utf-8").replace("<head>", f"<head><script>{TIMERS}</script>")
    path.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    profile = f"--user-data-dir={path.parent}/profile"
    done = subprocess.run(
        [browser, *OPTIONS, "--enable-logging=stderr", profile, f"{path.as_uri()}#{choice}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    # The scripts' own text is no part of what is shown.
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL), said
