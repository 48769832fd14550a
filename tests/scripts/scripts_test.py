# SPDX-License-Identifier: Apache-2.0
"""What the scripts of set-up and tests say. Nothing here installs or builds; it runs after scripts/setup, on a machine
that is set up."""
import os
import pathlib
import re
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def run(script, *arguments, **environment):
    return subprocess.run([SCRIPTS / script, *arguments], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **environment})


def test_a_dry_run_with_something_missing_says_so_at_its_end(tmp_path):
    cache = tmp_path / "cache"
    result = run("setup", "--dry-run", "--with-neon", NORMSERVE_CACHE=str(cache),
                 NORMSERVE_TORCH_DIR=str(cache / "libtorch" / "torch"), NORMSERVE_AARCH64_DIR=str(cache / "aarch64"))
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result
    assert any("LibTorch" in line and str(cache) in line for line in lines)
    assert any("for aarch64" in line and str(cache / "aarch64") in line for line in lines)
    assert any("Python packages" in line and "pytest" in line for line in lines)
    assert "nothing was installed" in lines[-1] and "complete" not in result.stdout
    assert not cache.exists()


def test_a_dry_run_of_a_complete_machine_says_that_there_is_nothing_to_install():
    result = run("setup", "--dry-run")
    assert result.returncode == 0, result
    assert result.stdout.splitlines()[-1] == "== dry run: nothing to install"


@pytest.mark.parametrize("script, arguments", [
    ("setup", ["--dry"]), ("test", ["--bench"]), ("test", ["--soak"]), ("test", ["--gpu"]), ("demo", ["--twice"]),
    ("test-container", ["--debian", "11"]), ("test-fresh", []),
])
def test_an_unknown_option_exits_2_with_the_usage(script, arguments):
    result = run(script, *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(f"Usage: scripts/{script} ")


def test_the_help_of_test_names_only_lanes_that_it_has():
    lanes = {word for line in run("test", "--help").stdout.splitlines() if line.startswith("  --")
             for word in re.findall(r"(?<!\S)--[a-z-]+", line)}
    script = (SCRIPTS / "test").read_text()
    assert {"--asan", "--cuda-all"} <= lanes
    for lane in lanes - {"--resume", "--sanitize"}:
        assert f"lane_{lane[2:].replace('-', '_')}() {{" in script, lane
