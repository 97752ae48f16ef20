# SPDX-License-Identifier: Apache-2.0
"""``python -m gpuscope``."""

from __future__ import annotations

import sys

from gpuscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
