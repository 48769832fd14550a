#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The arrows between folders: who may include whom (docs/architecture.md has the same table).

The build enforces most of it by private link dependencies; this catches what a shared include
root lets through. Prints one line per fault; exits 1 when there is any.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

# Folder -> what it may include of server/: whole folders ("base/") or single headers.
ALLOWED = {
    "base": ["base/"],
    "text": ["base/", "text/"],
    "scheduler": ["base/", "scheduler/"],
    "metrics": ["base/", "metrics/", "engine/engine.h"],
    "kernels": ["base/", "kernels/"],
    "norm": ["base/", "norm/", "kernels/ops.h", "kernels/norm_rows.h"],
    "model": ["base/", "model/", "norm/", "kernels/ops.h", "kernels/large_pages.h", "kernels/norm_rows.h",
              "kernels/read_ahead.h"],
    "engine": ["base/", "engine/", "scheduler/", "text/", "kernels/row_softmax.h", "kernels/sample_rows.h"],
    "rpc": ["base/", "rpc/", "engine/engine.h", "engine/request.h", "text/", "normserve/v1/"],
    "app": ["base/", "text/", "scheduler/", "metrics/", "kernels/", "norm/", "model/", "engine/", "rpc/",
            "app/", "normserve/v1/"],
    "client": ["base/", "client/", "normserve/v1/"],
}
# Single files that may include more than their folder, each with its ADR.
ALLOWED_FILES = {
    # docs/adr/0001: the one bridge from the engine to the models.
    "engine/model_runner": ["model/", "kernels/ops.h", "kernels/thread_pool.h"],
    "engine/device_runner": ["model/", "kernels/accelerator.h", "kernels/attention_tiles.h"],
    "engine/step_arrays": ["model/", "kernels/accelerator.h", "kernels/attention_tiles.h"],
}
GRPC = re.compile(r"^(grpc|grpcpp|google/protobuf)/|\.pb\.h$")
GRPC_FOLDERS = {"rpc", "app", "client"}
TORCH = re.compile(r"^(torch|ATen|c10)/")
TORCH_FOLDERS = {"kernels", "norm", "model", "app"}
TORCH_FILES = {"engine/model_runner", "engine/device_runner", "engine/step_arrays", "engine/end_throws"}
# Of kernels: these are row loops on plain pointers, which the engine links without LibTorch.
TORCH_FREE_FILES = {"kernels/row_softmax", "kernels/thread_pool", "kernels/norm_rows", "kernels/norm_math",
                    "kernels/sample_rows", "kernels/attention_tiles"}

OURS = tuple(f"{folder}/" for folder in ALLOWED) + ("normserve/v1/",)


def faults_of(path, folder):
    stem = f"{folder}/{path.stem}"
    allowed = ALLOWED[folder] + ALLOWED_FILES.get(stem, [])
    for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
        if name.startswith(OURS) and not any(
            name.startswith(a) if a.endswith("/") else name == a for a in allowed
        ):
            yield f"{path.relative_to(ROOT)}: {folder} may not include {name}"
        if GRPC.search(name) and folder not in GRPC_FOLDERS:
            yield f"{path.relative_to(ROOT)}: no gRPC or protobuf outside rpc, app and client ({name})"
        torch_allowed = (folder in TORCH_FOLDERS or stem in TORCH_FILES) and stem not in TORCH_FREE_FILES
        if TORCH.search(name) and not torch_allowed:
            yield f"{path.relative_to(ROOT)}: no LibTorch here ({name})"


def sources(folder):
    base = ROOT / folder if folder == "client" else ROOT / "server" / folder
    found = sorted(p for suffix in ("*.h", "*.cc") for p in base.rglob(suffix))
    # The composition root's main file lies beside its folder.
    return found + sorted((ROOT / "server").glob("*.cc")) if folder == "app" else found


def main():
    faults, seen = [], 0
    for folder in ALLOWED:
        for path in sources(folder):
            seen += 1
            faults += faults_of(path, folder)
    unknown = {p.name for p in (ROOT / "server").iterdir() if p.is_dir()} - set(ALLOWED)
    faults += [f"server/{name}: a folder that the table of check_includes.py does not have" for name in unknown]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"include rules: {seen} files, {len(faults)} faults")
    return 1 if faults or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
