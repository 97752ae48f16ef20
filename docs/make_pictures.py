# SPDX-License-Identifier: Apache-2.0
"""Makes docs/pictures from the recordings: ``python docs/make_pictures.py [FOLDER]``. Needs Playwright and a Chromium.

The window, the themes and the recording are fixed, so that a picture changes with the page alone.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import gpuscope

DOCS = Path(__file__).resolve().parent
RECORDING = DOCS / "recordings" / "resnet.gscope"
WIDTH, HEIGHT = 1120, 640
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def make_pictures(folder: Path) -> list[Path]:
    """Writes a picture of the report page in both themes. Returns their paths."""
    from playwright.sync_api import sync_playwright

    made = []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        page_file = Path(name) / "report.html"
        gpuscope.load(RECORDING).report(page_file)
        path = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            page.wait_for_selector("html[data-complete]", timeout=60_000)
            made.append(folder / f"overview-{scheme}.png")
            page.screenshot(path=made[-1])
            page.close()
        browser.close()
    return made


if __name__ == "__main__":
    for picture in make_pictures(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "pictures"):
        print(f"{picture}  {picture.stat().st_size} bytes")
