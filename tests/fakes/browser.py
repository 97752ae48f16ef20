# SPDX-License-Identifier: Apache-2.0
"""Looks at a page in a headless browser."""

from __future__ import annotations

import contextlib
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
        path: of the page, which is changed: `script` runs at its end, as a module.
        choice: what stands behind the # of the address.
        script: JavaScript.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    text = path.read_text(encoding="utf-8").replace("<head>", f"<head><script>{TIMERS}</script>")
    path.write_text(text.replace("</body>", f'<script type="module">{script}</script></body>'), encoding="utf-8")
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


@contextlib.contextmanager
def chromium():
    """A running Chromium that Playwright drives; skips the test where either is missing."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as runs:
        browser = runs.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, path, choice="", *, width=1280, height=860, complete=True, **options):
    """A page once it has read its data; it fails when it asks for anything or its console says something.

    Args:
        browser: what `chromium` gave.
        path: of the page.
        choice: what stands behind the # of the address.
        width: of the window, and its height.
        height: likewise.
        complete: wait until all is read.
        options: of Playwright's `new_context`.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{path.as_uri()}#{choice}")
    if complete:
        page.wait_for_selector("html[data-complete]", state="attached")
    yield page
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "blob:"))] == []
    assert len({url.partition("#")[0] for url in asked if url.startswith("file:")}) == 1


def opener(browser, path, write):
    """Opens the page of what it is called with, in a browser; the other arguments are those of `opened`.

    Args:
        browser: that `chromium` runs.
        path: of the page.
        write: makes the page, of a result and a path.
    """

    def open_page(made, choice="", **options):
        write(made, path)
        return opened(browser, path, choice, **options)

    return open_page
