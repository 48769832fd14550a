# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the whole suite. Each test file can run alone: pytest tests/e2e/test_golden.py."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import checkpoints  # noqa: E402
import server as server_module  # noqa: E402
from server import BINARY, DEMO, Server  # noqa: E402


def pytest_sessionstart(session):
    if not BINARY.exists():
        pytest.exit(f"no server binary at {BINARY}: build it, or set NORMSERVE_BIN", returncode=2)


def pytest_report_header(config):
    return f"server: {server_module.BINARY}"


@pytest.fixture(scope="session")
def demo_models():
    return {"bhyt": DEMO / "bhyt-kjv", "simplegpt": DEMO / "simplegpt-kjv"}


@pytest.fixture(scope="module")
def demo(demo_models):
    """Both demo models with default settings, one server per test file."""
    with Server(demo_models) as server:
        yield server


@pytest.fixture(scope="session")
def long_model(tmp_path_factory):
    """A random Llama with a context of 16,384 tokens and the demo tokenizer: for requests that last."""
    folder = tmp_path_factory.mktemp("long-context")
    checkpoints.llama(folder, hidden=128, layers=4, vocab=2048, max_positions=16384, tokenizer=True)
    return folder
