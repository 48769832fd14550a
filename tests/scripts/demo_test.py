# SPDX-License-Identifier: Apache-2.0
"""How scripts/demo starts, watches and ends its server: the real script in a tree whose set-up, build, server, client
and curl are stand-ins, so that nothing is installed, built or served."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
SERVER = """#!{python}
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path(os.environ["ARGUMENTS"]).write_text(" ".join(sys.argv[1:]))
pathlib.Path(os.environ["ARGUMENTS"] + ".pid").write_text(str(os.getpid()))
print("a line of the log", file=sys.stderr, flush=True)
if os.environ["SERVER"] == "fails":
    sys.exit(1)
if os.environ["SERVER"] != "loads":
    pathlib.Path(sys.argv[sys.argv.index("--ready-file") + 1]).write_text('{{"grpc_port": 1, "metrics_port": 2}}')
if os.environ["SERVER"] == "crashes":
    time.sleep(1)
    sys.exit(3)
signal.pause()
"""


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(name="demo")
def _demo(tmp_path):
    """Starts scripts/demo with a server that serves, loads for ever, fails while loading, or crashes later."""
    for name in ("demo", "environment.sh"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    executable(tmp_path / "scripts/setup", "#!/bin/sh\n")
    executable(tmp_path / "bin/cargo", "#!/bin/sh\necho cargo 9.0.0\n")
    executable(tmp_path / "bin/cmake", "#!/bin/sh\n")
    executable(tmp_path / "bin/curl", "#!/bin/sh\necho normserve_requests_running 0\n")
    executable(tmp_path / "build/release/bin/normserve", SERVER.format(python=sys.executable))
    executable(tmp_path / "build/release/bin/normserve-client", "#!/bin/sh\n")
    (tmp_path / "build/release/build.ninja").touch()
    (tmp_path / "tmp").mkdir()
    started = []

    def start(server, *arguments, **environment):
        process = subprocess.Popen(
            [tmp_path / "scripts/demo", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            # In a step of scripts/test SIGINT is ignored, as in every job in the background; a shell cannot undo that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp"),
                 "SERVER": server, "ARGUMENTS": str(tmp_path / "arguments"), **environment})
        started.append(process)
        return process
    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    assert not list((tmp_path / "tmp").iterdir()), "the demo left files behind"
    pid = tmp_path / "arguments.pid"
    assert not pid.exists() or not pathlib.Path("/proc", pid.read_text()).exists(), "the demo left its server behind"


def read_until(process, words):
    said = ""
    while words not in said:
        line = process.stdout.readline()
        assert line, f"ended without {words!r}: {said}"
        said += line
    return said


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_it_serves_is_a_success(demo, sig):
    process = demo("serves")
    read_until(process, "serving until Ctrl-C")
    process.send_signal(sig)
    assert "stopping the server" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


@pytest.mark.parametrize("sig,code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_before_it_serves_is_not(demo, sig, code):
    process = demo("loads")
    read_until(process, "starting the server")
    process.send_signal(sig)
    process.communicate(timeout=60)
    assert process.returncode == code


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_whose_message_nobody_reads_ends_the_server(demo, sig):
    process = demo("serves")
    read_until(process, "serving until Ctrl-C")
    process.stdout.close()
    process.send_signal(sig)
    process.wait(60)


def test_output_that_nobody_reads_ends_demo_and_server(demo):
    process = demo("serves")
    read_until(process, "starting the server")
    process.stdout.close()
    process.wait(60)
    assert process.returncode != 0


def test_many_stops_at_once_end_the_server(demo):
    process = demo("serves")
    read_until(process, "serving until Ctrl-C")
    for _ in range(6):
        process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    process.communicate(timeout=60)


def test_once_ends_by_itself(demo):
    process = demo("serves", "--once")
    assert "stopping the server" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


@pytest.mark.parametrize("server,error", [
    ("fails", "error: the server did not become ready: see above"),
    ("crashes", "error: the server ended by itself with exit code 3: see above"),
])
def test_a_server_that_ends_by_itself_leaves_the_end_of_its_log(demo, server, error):
    process = demo(server)
    said = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 1
    assert said[-2:] == ["a line of the log", error], said


@pytest.mark.parametrize("listens", [True, False])
def test_a_port_that_something_holds_is_left_to_it(demo, tmp_path, listens):
    with socket.socket() as holder, socket.socket() as free:
        holder.bind(("127.0.0.1", 0))
        if listens:
            holder.listen()
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        demo("serves", "--once", NORMSERVE_DEMO_PORT=str(holder.getsockname()[1]),
             NORMSERVE_DEMO_METRICS_PORT=str(port)).communicate(timeout=60)
    arguments = (tmp_path / "arguments").read_text()
    assert "--listen 127.0.0.1:0 " in arguments
    assert f"--metrics-listen 127.0.0.1:{port} " in arguments
