# SPDX-License-Identifier: Apache-2.0
"""Regions where there is no memory left for them: the program gets MemoryError, and goes on."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource, gpuscope as gs
# Names by the hundred thousand, made before: to learn one takes memory of the core alone.
texts = [f"a region whose name is longer than a string without memory of its own {number}" for number in range(100_000)]
regions = [gs.record_function(text) for text in texts]
failed = 0
with gs.profile(max_bytes="64MB") as prof:
    with gs.record_function("before"):
        pass
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    for region in regions:
        try:
            with region:
                pass
        except MemoryError:
            failed += 1
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(failed > 0)
with gs.profile() as prof, gs.record_function("after"):
    pass
print({row.key for row in prof.key_averages()})
"""


def test_a_region_without_memory_for_its_name_raises_memory_error():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n{'after'}\n", "")
