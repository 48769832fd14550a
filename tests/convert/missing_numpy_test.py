# SPDX-License-Identifier: Apache-2.0
"""Without numpy the command says what to install, and shows no traceback."""
import os
import pathlib
import subprocess
import sys
import tomllib

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "convert"


def run_without_numpy(*arguments):
    # -S: without site-packages, so that only the standard library and the tool are found.
    return subprocess.run([sys.executable, "-S", *arguments], capture_output=True, text=True, check=False, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(TOOL)})


def check_sentence(result):
    assert result.returncode == 1 and result.stdout == "", result
    assert result.stderr.startswith("normserve-convert: the Python package numpy is missing; install it with ")
    assert len(result.stderr.splitlines()) == 1


def test_the_module_names_the_missing_package():
    check_sentence(run_without_numpy("-m", "normserve_convert", "step-10", "out"))


def test_the_console_script_names_the_missing_package():
    module, function = tomllib.loads((TOOL / "pyproject.toml").read_text())["project"]["scripts"]["normserve-convert"].split(":")
    check_sentence(run_without_numpy("-c", f"import sys; from {module} import {function}; sys.exit({function}())"))
