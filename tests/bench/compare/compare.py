#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""normserve and every rival that is installed, on the same checkpoint, interleaved.

Per engine and round: tokens/s with several numbers of requests in flight, decode alone, prefill, time
to first token, inter-token latency, peak memory, start-up. Prints Markdown; README.md says how the
rivals are installed and what is compared with what.

usage: compare.py --model CHECKPOINT_FOLDER --rivals FOLDER [--rounds 3] [--json-out run.json] ...
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import signal
import subprocess
import sys

import figures
import limits
import plot
import report
import rounds
from worker import adapter_named

# Their modules in engines/, by the name they are asked for with.
ADAPTERS = {
    "normserve": "normserve",
    "llama.cpp": "llama_cpp",
    "ik_llama.cpp": "ik_llama_cpp",
    "onnxruntime-genai": "onnxruntime_genai",
    "openvino-genai": "openvino_genai",
    "ctranslate2": "ctranslate2",
}
DEFAULT_ENGINES = [
    *("normserve:bf16", "normserve:int8", "normserve:int4"),
    *("llama.cpp:f16", "llama.cpp:q8_0", "llama.cpp:q4_0", "ik_llama.cpp:q8_0", "ik_llama.cpp:q4_0"),
    *("onnxruntime-genai:int4", "openvino-genai:int8", "ctranslate2:int8"),
]


def integers(value: str) -> list[int]:
    return [int(part) for part in value.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--model", required=True, metavar="DIR", help="checkpoint folder: config.json and safetensors")
    add("--engines", default=",".join(DEFAULT_ENGINES), help="ENGINE:KIND,... (default: %(default)s)")
    add("--server", default="build/release/bin/normserve", help="the normserve binary")
    add("--client", default="build/release/bin/normserve-client", help="the normserve-client binary")
    add("--server-flags", default="", help="more flags of normserve, one string")
    add("--python", default=sys.executable, help="Python for the normserve rows' own process")
    add("--rivals", default="rivals", metavar="DIR", help="their environments: DIR/ENGINE/bin/python")
    add("--converted", metavar="DIR", help="converted models (default: RIVALS/models)")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every engine")
    add("--streams", type=integers, default=[1, 4, 8, 32], help="requests in flight: 1,4,8,32")
    add("--prefill", type=integers, default=[128, 512], help="prompt lengths of the prefill figures")
    add("--prompt-tokens", type=int, default=128)
    add("--output-tokens", type=int, default=128)
    add("--rounds", type=int, default=3)
    add("--convert-only", action="store_true", help="write the converted models and measure nothing")
    add("--append", action="store_true", help="add to the rounds that --json-out has already")
    add("--json-out", help="everything measured, as JSON; written after each round")
    add("--markdown-out", help="the report, which is printed too")
    add("--svg-out", help="tokens/s as bars")
    add("--log", default=os.devnull, help="what the engines print")
    arguments = parser.parse_args()
    if arguments.append and not arguments.json_out:
        parser.error("--append needs --json-out")
    if arguments.output_tokens < 2:
        parser.error(f"--output-tokens {arguments.output_tokens}: at least 2 are needed")
    for key in arguments.engines.split(","):
        name, _, variant = key.partition(":")
        if name not in ADAPTERS:
            parser.error(f"--engines {key}: the engines are {', '.join(ADAPTERS)}")
        known = adapter_named(ADAPTERS[name]).VARIANTS
        if variant not in known:
            parser.error(f"--engines {key}: the kinds of {name} are {', '.join(known)}")
    return arguments


def has_module(python: str, module: str) -> bool:
    check = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return pathlib.Path(python).exists() and subprocess.run([python, "-c", check], check=False).returncode == 0


def install_command(arguments, adapter) -> str:
    if not adapter.FOLDER:
        return f"pip install {adapter.INSTALL}"
    folder = f"{arguments.rivals}/{adapter.FOLDER}"
    command = f"python3 -m venv {folder} && {folder}/bin/pip install {adapter.INSTALL}"
    if hasattr(adapter, "INSTALL_ALSO"):
        command += f" && cd {folder} && {adapter.INSTALL_ALSO}"
    return command


def python_of(arguments, folder: str) -> str:
    if not folder:
        return arguments.python
    # Not resolved: a virtual environment is known by where its python is called.
    return str(pathlib.Path(arguments.rivals).absolute() / folder / "bin" / "python")


def converted(arguments, module: str, adapter, variant: str) -> tuple[str, str]:
    """(path of the engine's form of the model, made now if need be; or "" and the command that is missing)."""
    if hasattr(adapter, "CONVERTED_BY"):
        module = ADAPTERS[adapter.CONVERTED_BY]
        adapter = adapter_named(module)
    if not hasattr(adapter, "convert"):
        return str(pathlib.Path(arguments.model).resolve()), ""
    folder = pathlib.Path(arguments.converted or f"{arguments.rivals}/models").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{pathlib.Path(arguments.model).resolve().name}-{variant}{adapter.SUFFIX}"
    if target.exists():
        return str(target), ""
    where, packages = getattr(adapter, "CONVERTER", (adapter.FOLDER, adapter.INSTALL))
    python = python_of(arguments, where)
    if not pathlib.Path(python).exists():
        path = f"{arguments.rivals}/{where}"
        return "", f"python3 -m venv {path} && {path}/bin/pip install {packages}"
    print(f"converting: {target}", file=sys.stderr, flush=True)
    command = [python, rounds.WORKER, "convert", module, arguments.model, str(target), variant]
    with open(arguments.log, "ab") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
    return str(target), ""


def find_engines(arguments) -> tuple[list[rounds.Installed], dict[str, str]]:
    """(those that can run, what would install the others)"""
    found, missing = [], {}
    for key in arguments.engines.split(","):
        name, _, variant = key.partition(":")
        module, adapter = ADAPTERS[name], adapter_named(ADAPTERS[name])
        python = python_of(arguments, adapter.FOLDER)
        present = has_module(python, adapter.MODULE)
        if name == "normserve":
            present = present and pathlib.Path(arguments.server).exists()
        if not present:
            missing[key] = install_command(arguments, adapter)
            continue
        model, command = converted(arguments, module, adapter, variant)
        if model:
            found.append(rounds.Installed(key, module, adapter, variant, python, model))
        else:
            missing[key] = command
    return found, missing


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def settings_of(arguments) -> dict:
    names = ("streams", "prefill", "prompt_tokens", "output_tokens", "threads")
    settings = {name: getattr(arguments, name) for name in names}
    settings["engines"] = arguments.engines.split(",")
    return settings | {"processor": processor(), "model": pathlib.Path(arguments.model).name}


def summarise(run: dict) -> None:
    """Fills in what follows from the rounds."""
    run["summary"] = figures.medians(run["rounds"])
    ids = run["ids"]
    run["reference"] = next((e for e in run["settings"]["engines"] if e in ids), "")
    run["check_tokens"] = rounds.CHECK_TOKENS
    run["agreement"] = {
        engine: figures.leading_equal(ids[engine], ids[run["reference"]])
        for engine in run["settings"]["engines"]
        if engine in ids and engine != run["reference"]
    }


def appended(arguments, earlier: dict, settings: dict) -> dict:
    """The earlier run, to be gone on with. Engines may differ: each has its own number of rounds."""
    engines = earlier["settings"]["engines"]
    if earlier["settings"] | {"engines": []} != settings | {"engines": []}:
        sys.exit(f"--append: {arguments.json_out} is of other settings: {earlier['settings']}")
    engines += [engine for engine in settings["engines"] if engine not in engines]
    return earlier


def write(arguments, run: dict) -> None:
    summarise(run)
    outputs = {
        arguments.json_out: lambda: json.dumps(run, indent=1) + "\n",
        arguments.markdown_out: lambda: report.markdown(run),
        arguments.svg_out: lambda: plot.svg(run),
    }
    for path, content in outputs.items():
        if path:
            pathlib.Path(path).write_text(content(), encoding="utf-8")


def main() -> None:
    arguments = parse()
    # So that a terminated run stops its engines, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    engines, missing = find_engines(arguments)
    if arguments.convert_only:
        return
    if not engines:
        sys.exit("no engine is installed:\n" + "\n".join(f"{key}: {c}" for key, c in missing.items()))
    command = shlex.join(["compare.py", *sys.argv[1:]])
    run = {"command": command, "settings": settings_of(arguments), "rounds": []}
    run |= {"ids": {}, "versions": {}, "failed": {}}
    if arguments.append and pathlib.Path(arguments.json_out).exists():
        earlier = json.loads(pathlib.Path(arguments.json_out).read_text(encoding="utf-8"))
        run = appended(arguments, earlier, run["settings"])
    run["not_installed"] = missing
    run["limits"] = limits.measure(arguments.threads)
    run["limits"]["allowed"] = limits.allowed(run["limits"], limits.matrix_parameters(arguments.model))
    config = json.loads((pathlib.Path(arguments.model) / "config.json").read_text(encoding="utf-8"))

    def after_round(measured: dict, ids: dict, versions: dict, failed: dict) -> None:
        run["rounds"].append(measured)
        run["ids"] |= ids
        run["versions"] |= versions
        run["failed"] |= failed
        run["ended"] = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        write(arguments, run)

    with open(arguments.log, "ab") as log:
        rounds.run(engines, arguments, config["vocab_size"], len(run["rounds"]), log, after_round)
    print(report.markdown(run), end="")


if __name__ == "__main__":
    main()
