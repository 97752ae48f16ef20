# SPDX-License-Identifier: Apache-2.0
"""What a report page costs: to write, to carry, to open and to look at. No GPU is needed, but a Chromium is.

Pages are those of recordings of 1M kernels and 1M launches (programs that were played on a small machine, with noise on
every duration, laid end to end), of a table of 50k rows, and of a loop of 450 launches as ``gpuscope demo`` records.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
KERNELS, LONG_TABLE, DEMO_LAUNCHES = 1_000_000, 50_000, 450
NOISE = 0.2
REPEATS = 3
WAIT_MS = 60_000
OPTIONS = ("--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc")
WRITTEN = ("report_1m_write", "report_1m_findings", "report_1m_size", "report_small_size")
SHOWN = (
    "report_1m_first",
    "report_1m_complete",
    "report_1m_frame",
    "report_1m_frame_step",
    "report_sort",
    "report_1m_heap",
)


def noisy(store: Any, seed: int = 1) -> Any:
    """The store with times as a real GPU has them: what repeats to the nanosecond would deflate to nothing."""
    from fakes.gscope import file_of, strings_block, table_block
    from gpuscope import _core

    chance = np.random.default_rng(seed)
    blocks = [strings_block(store.strings())]
    for table in _core.schema():
        if not store.rows(table.name):
            continue
        values = {name: np.array(each) for name, each in store.columns(table.name).items()}
        if table.name in ("kernel", "api"):
            length = values["duration_ns"]
            shorter = (length * np.abs(chance.normal(0, NOISE, len(length)))).astype(np.int64)
            values["start_ns"] = values["start_ns"] + shorter // 2
            values["duration_ns"] = np.maximum(length - shorter, 1)
        blocks.append(table_block(table.name, values))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "noisy.gscope"
        path.write_bytes(file_of(*blocks))
        return _core.read_gscope(str(path))


def recordings() -> dict[str, Any]:
    from diagnoses import PROGRAMS, end_to_end

    return {name: noisy(end_to_end(PROGRAMS[name](), KERNELS)) for name in ("GPU-bound", "launch-bound")}


def small() -> Any:
    from fakes.loops import Loop

    loop = Loop()
    for _ in loop.steps(50):
        for name in ("load", "forward", "backward"):
            with loop.region(name):
                for _ in range(DEMO_LAUNCHES // 150):
                    loop.launch(gpu=20)
    return loop.trace()


def long_table() -> Any:
    from fakes.recordings import make_trace

    names = [f"kernel_{number * 7919 % LONG_TABLE:05d}<float>" for number in range(LONG_TABLE)]
    starts = [1_000_000 + 2_000 * number for number in range(LONG_TABLE)]
    lengths = [500 + number * 104_729 % 1_000 for number in range(LONG_TABLE)]
    return make_trace(
        {
            "variant": {"name": names},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "kernel": {"start_ns": starts, "duration_ns": lengths, "variant": list(range(LONG_TABLE))},
        },
        info={"session.start_ns": "1000000", "session.stop_ns": str(starts[-1] + 2_000)},
    )


def written(store: Any, path: Path) -> tuple[list[float], list[float]]:
    """Seconds without and with the findings, each time of a trace that nothing is known of yet."""
    from gpuscope.exporters.page.report import export_report
    from gpuscope.trace import Trace

    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for findings in (True, False):
            trace = Trace(store)
            began = time.perf_counter()
            export_report(trace, path, findings=findings)
            spent[not findings].append(round(time.perf_counter() - began, 3))
    return spent[1], spent[0]


FRAMES = """async () => {
  const place = document.getElementById("lanes"), box = place.getBoundingClientRect(), found = [];
  const at = { clientX: box.left + box.width / 2, clientY: box.top + 100, bubbles: true, cancelable: true };
  await new Promise((done) => setTimeout(done, 400));
  for (let turn = 0; turn < 24; turn += 1) {
    const before = document.documentElement.dataset.frame;
    place.dispatchEvent(new WheelEvent("wheel", { ...at, deltaX: turn % 2 ? 40 : -40, deltaY: 0 }));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    found.push(Number(document.documentElement.dataset.frame));
  }
  return found;
}"""


def looked_at(browser: Any, path: Path) -> dict[str, Any]:
    """Opens a page as a reader does, and draws it from afar and in a step."""
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.goto(path.as_uri() + "#/timeline", timeout=WAIT_MS)
    page.wait_for_selector("html[data-complete]", state="attached", timeout=WAIT_MS)
    facts = page.evaluate("({ ...document.documentElement.dataset })")
    whole = page.evaluate(FRAMES)
    page.focus("#lanes")
    for _ in range(5):
        page.keyboard.press("s")
    step = page.evaluate(FRAMES)
    page.evaluate("window.gc && gc()")
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    # Typed arrays lie beside the heap; DevTools counts both.
    session = page.context.new_cdp_session(page)
    usage = session.send("Runtime.getHeapUsage")
    heap = max(heap, usage["usedSize"] + usage.get("backingStorageSize", 0))
    page.close()
    return {
        "first": int(facts["events"]) / 1e3,
        "complete": int(facts["complete"]) / 1e3,
        "whole": statistics.median(whole),
        "step": statistics.median(step),
        "heap": heap / 1e6,
    }


def sorted_in_ms(browser: Any, path: Path) -> float:
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.goto(path.as_uri(), timeout=WAIT_MS)
    page.wait_for_selector("html[data-complete]", state="attached", timeout=WAIT_MS)
    found = []
    for key in ("name", "p50", "gpu", "name", "max"):
        page.click(f"[role=columnheader][data-key={key}] button")
        found.append(float(page.evaluate("document.documentElement.dataset.sorted")))
    page.close()
    return max(found)


def browsers() -> tuple[Any, str]:
    """A started Chromium and what it runs in, or None and why not."""
    import shutil

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        return None, "no Chromium is installed"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None, "playwright is not installed"
    runs = sync_playwright().start()
    return (runs, runs.chromium.launch(executable_path=path, args=list(OPTIONS))), ""


def main() -> None:
    options = measure.arguments(__doc__)
    why = measure.why_not_available() or ("recordings of 1M launches are left out" if options.quick else "")
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in (*WRITTEN, *SHOWN)}})
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from gpuscope.exporters.page.report import export_report

    rows: dict[str, measure.Row] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write, findings, size = {}, {}, {}
        for program, store in recordings().items():
            write[program], findings[program] = written(store, folder / f"{program}.html")
            size[program] = (folder / f"{program}.html").stat().st_size / 1e6
        export_report(small(), folder / "small.html")
        export_report(long_table(), folder / "long.html")
        rows["report_1m_write"] = {"value": max(map(statistics.median, write.values())), "detail": write}
        rows["report_1m_findings"] = {"value": max(map(statistics.median, findings.values())), "detail": findings}
        rows["report_1m_size"] = {"value": max(size.values()), "detail": size}
        rows["report_small_size"] = {"value": (folder / "small.html").stat().st_size / 1e3}
        found, why = browsers()
        if found is None:
            rows |= {name: {"skipped": why} for name in SHOWN}
        else:
            runs, browser = found
            looks = {p: [looked_at(browser, folder / f"{p}.html") for _ in range(REPEATS)] for p in write}
            for row, key in zip(SHOWN, ("first", "complete", "whole", "step", "", "heap"), strict=True):
                if key:
                    worst = max(statistics.median(each[key] for each in turns) for turns in looks.values())
                    rows[row] = {"value": round(worst, 3), "detail": looks}
            rows["report_sort"] = {"value": sorted_in_ms(browser, folder / "long.html")}
            browser.close()
            runs.stop()
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
