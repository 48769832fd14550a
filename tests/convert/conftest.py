# SPDX-License-Identifier: Apache-2.0
"""Makes the converter importable from the source tree, and runs its command in this process."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "convert"))


@pytest.fixture
def convert(tmp_path, capsys):
    """convert(checkpoint, *flags) -> (exit code, output folder, stderr)."""
    from normserve_convert.cli import main

    runs = iter(range(100))

    def run(checkpoint, *flags):
        folder = tmp_path / f"out{next(runs)}"
        code = main([str(checkpoint), str(folder), *map(str, flags)])
        return code, folder, capsys.readouterr().err

    return run
