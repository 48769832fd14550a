# SPDX-License-Identifier: Apache-2.0
"""A progress bar on stderr: redrawn in place on a terminal, one line per tenth elsewhere."""

import shutil
import sys
import time


class ProgressBar:
    """Counts bytes up to `total`; call it after each tensor."""

    def __init__(self, total: int, quiet: bool):
        self._total = max(total, 1)
        self._done = 0
        self._quiet = quiet
        self._start = time.monotonic()
        self._drawn = -1.0
        self._on_terminal = sys.stderr.isatty()

    def __call__(self, name: str, byte_count: int) -> None:
        self._done += byte_count
        if self._quiet:
            return
        share = self._done / self._total
        step = 0.005 if self._on_terminal else 0.1
        if share - self._drawn < step and self._done < self._total:
            return
        self._drawn = share
        seconds = max(time.monotonic() - self._start, 1e-6)
        left = seconds * (1 - share) / share if share > 0 else 0.0
        text = (
            f"{100 * share:3.0f}% {self._done / 1e6:.1f}/{self._total / 1e6:.1f} MB "
            f"{self._done / 1e6 / seconds:.0f} MB/s, {left:.0f} s left"
        )
        if not self._on_terminal:
            print(text, file=sys.stderr, flush=True)
            return
        columns = shutil.get_terminal_size().columns
        width = max(10, min(40, columns - len(text) - 6))
        filled = int(width * share)
        line = f"[{'#' * filled}{'.' * (width - filled)}] {text} {name}"
        print(f"\r{line[: columns - 1]:<{columns - 1}}", end="", file=sys.stderr, flush=True)
        if self._done >= self._total:
            print(file=sys.stderr, flush=True)
