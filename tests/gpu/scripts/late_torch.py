# SPDX-License-Identifier: Apache-2.0
"""A program that knows nothing of profilers of ours and imports torch when it needs it."""

from __future__ import annotations


def main() -> None:
    import torch

    x = torch.ones(64, 64, device="cuda")
    for _ in range(7):
        with torch.autograd.profiler.record_function("halves"):
            x = (x @ x) / 64
    print(float(x.sum()))


if __name__ == "__main__":
    main()
