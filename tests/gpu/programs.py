# SPDX-License-Identifier: Apache-2.0
"""What a row of the check needs of this machine: is there a GPU, where is LibTorch, and running a program under a time
limit without losing what it has said."""
import ctypes
import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class NotRun(Exception):
    """Why a row, or a part of one, has no result: its whole sentence."""


def gpu() -> str:
    """The first one's name, by the driver's own word, so without any CUDA library; empty: there is none."""
    count, device, cuda = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return ""
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDriverGetVersion(ctypes.byref(cuda))
    return f"{name.value.decode()}, driver for CUDA {cuda.value // 1000}.{cuda.value % 1000 // 10}"


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def packed() -> dict:
    """What pack.sh wrote down; empty in a checkout."""
    path = ROOT / "packed.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def version(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


def library_folders() -> list[pathlib.Path]:
    """Of what the programs are linked with: the packed ones, LibTorch of this Python, NVIDIA's beside it."""
    folders = [ROOT / "lib"]
    glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0").split()[-1]
    if version(packed().get("glibc of lib-compiler", "0")) <= version(glibc):
        folders.append(ROOT / "lib-compiler")
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        torch = pathlib.Path(spec.submodule_search_locations[0])
        folders += [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    return [folder for folder in folders if folder.is_dir()]


class Budget:
    def __init__(self, seconds: float, now=time.monotonic):
        self.now, self.end = now, now() + seconds

    def left(self) -> float:
        return self.end - self.now()


@dataclasses.dataclass
class Context:
    """Where a run of the check is, and how long its current row may go on."""
    dry: bool
    bin: pathlib.Path
    logs: pathlib.Path
    budget: Budget  # of the row
    copy_bytes_per_second: float = 0  # measured

    @property
    def device(self) -> str:
        return "cuda-emulated" if self.dry else "cuda"

    def program(self, name: str) -> str:
        path = self.bin / name
        if not path.exists():
            raise NotRun(f"not run: there is no {name}")
        return str(path)

    def environment(self, **more: str) -> dict[str, str]:
        folders = [str(folder) for folder in library_folders()] + [os.environ.get("LD_LIBRARY_PATH", "")]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, folders)), **more}


OUT_OF_TIME = "out of time after"


def lines_of(context: Context, name: str, command: list, share: float = 1, **options) -> tuple[list[str], str]:
    """Runs a program, which may take a share of the time that its row has; its lines, and what went wrong or nothing.
    All that it says is kept in a log as well."""
    log = context.logs / f"{name}.txt"
    limit = max(1.0, share * context.budget.left())
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=out, text=True,
                                   **options)
        timed_out = threading.Event()
        timer = threading.Timer(limit, lambda: (timed_out.set(), process.kill()))
        timer.start()
        lines = []
        for line in process.stdout:
            out.write(line)
            lines.append(line.rstrip("\n"))
        code = process.wait()
        timer.cancel()
    if timed_out.is_set():
        return lines, f"{OUT_OF_TIME} {limit:.0f} s"
    return lines, "" if code == 0 else f"ended with {code}: {last_words(log)}"


def json_lines(context: Context, name: str, command: list, **options) -> tuple[list[dict], str]:
    lines, problem = lines_of(context, name, command, **options)
    return [json.loads(line) for line in lines if line.startswith("{")], problem


def last_words(log: pathlib.Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def python() -> str:
    return sys.executable
