# SPDX-License-Identifier: Apache-2.0
"""What all Python tests share."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

# Builders of test data: `from fakes.elf import needed_libraries`.
sys.path.insert(0, str(Path(__file__).parent))

# Tests compare text: no colours, and a table's width does not depend on the terminal.
os.environ["NO_COLOR"] = "1"
os.environ["COLUMNS"] = "120"

# A thousand processes that tests start would each compile what they import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Shells have what runs in their background ignore Ctrl-C, and programs started from there inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")
