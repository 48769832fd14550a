# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/check.sh from start to end, with the emulated device in the GPU's place."""
import json
import os
import pathlib
import subprocess
import sys

GPU = pathlib.Path(__file__).resolve().parents[1] / "gpu"
sys.path.insert(0, str(GPU))
import check  # noqa: E402
import correctness  # noqa: E402
import generation  # noqa: E402
import gpu_report  # noqa: E402

from server import BINARY  # noqa: E402


def test_a_dry_run_does_every_row_and_measures_nothing(tmp_path):
    result = subprocess.run([GPU / "check.sh", "--dry-run", "--out", tmp_path, "--bin", BINARY.parent],
                            capture_output=True, text=True, timeout=300, check=False,
                            env={**os.environ, "PYTHON": sys.executable})
    assert result.returncode == 0, result.stdout + result.stderr
    run = json.loads((tmp_path / "report.json").read_text())
    rows = {row["name"]: row for row in run["rows"]}
    assert set(rows) == {row.name for row in check.ROWS if row.dry}
    for name, row in rows.items():
        expected = {"norms": "measured", "generation": "measured", "generation_fp8": "measured"}.get(name, "passed")
        assert row["status"] == expected or name in ("sanitizer", "norms_torch"), row
    assert rows["golden"]["figures"]["passed"] == len(correctness.DRY_CASES)
    assert rows["sanitizer"]["status"] == "not run: the emulated device has no compute-sanitizer"
    assert {f["us"] for f in rows["norms"]["figures"]} == {gpu_report.NOT_MEASURED}
    assert {f["model"] for f in rows["generation"]["figures"]} == set(check.BEST)
    assert {f["tokens_per_second"] for f in rows["generation"]["figures"]} == {gpu_report.NOT_MEASURED}
    assert {r["ratio"] for r in rows["generation"]["ratios"]} == {*generation.RATIOS, "rms/limit"}
    text = (tmp_path / "report.md").read_text()
    assert "| bhyt_second | 64 | 1 | not measured | not measured | <= 2.5 us |" in text
    assert "| bhyt/rms | 1 | 1B | not measured |" in text
    assert not list(pathlib.Path("/dev/shm").glob("normserve-gpu-*"))
