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
    """Every row is there; two say that they cannot run without a GPU."""
    result = subprocess.run([GPU / "check.sh", "--dry-run", "--out", tmp_path, "--bin", BINARY.parent],
                            capture_output=True, text=True, timeout=300, check=False,
                            env={**os.environ, "PYTHON": sys.executable})
    assert result.returncode == 0, result.stdout + result.stderr
    run = json.loads((tmp_path / "report.json").read_text())
    rows = {row["name"]: row for row in run["rows"]}
    assert list(rows) == [row.name for row in check.ROWS]
    for name, row in rows.items():
        expected = gpu_report.RAN if name == "norms" or name.startswith("generation") else "passed"
        assert row["status"] == expected or name in ("sanitizer", "norms_torch"), row
        assert row["title"].endswith("(dry: a few tiny cases)")
    assert rows["golden"]["figures"]["passed"] == len(correctness.DRY_CASES)
    assert rows["sanitizer"]["status"] == "not run: the emulated device has no compute-sanitizer"
    assert {f["us"] for f in rows["norms"]["figures"]} == {gpu_report.NOT_MEASURED}
    assert {f["model"] for f in rows["generation"]["figures"]} == set(check.BEST)
    assert {f["tokens_per_second"] for f in rows["generation"]["figures"]} == {gpu_report.NOT_MEASURED}
    assert {r["ratio"] for r in rows["generation"]["ratios"]} == {*generation.RATIOS, "rms/limit"}
    text = (tmp_path / "report.md").read_text()
    assert "| bhyt_second | 64 | 1 | not measured | not measured | <= 2.5 us |" in text
    assert "| bhyt/rms | 1 | 1B (dry: a few tiny cases) | not measured |" in text
    assert {f["flags"] for f in rows["generation_flashinfer"]["figures"]} == {"--attention flashinfer"}
    assert not list(pathlib.Path("/dev/shm").glob("normserve-gpu-*"))


def test_a_check_of_which_nothing_ran_has_failed(tmp_path):
    result = subprocess.run([GPU / "check.sh", "--dry-run", "--out", tmp_path / "report", "--bin", tmp_path],
                            capture_output=True, text=True, timeout=60, check=False,
                            env={**os.environ, "PYTHON": sys.executable})
    assert result.returncode == 1
    assert f"check.sh: nothing ran; programs were looked for in {tmp_path}" in result.stderr
