#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of the tree as text: licence lines, file sizes, left-over markers, paths named in documents.

Prints one line per fault; exits 1 when there is any.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_LINES = 400
# Longer ones, each with its reason.
LONG_FILES = {
    "proto/normserve/v1/generation.proto": "the whole contract in one place, half of it comments",
    "server/text/rust/src/sentencepiece.rs": "one tokenizer: reading, normalising and merging share its tables",
}
SOURCE = {".cc", ".h", ".py", ".rs", ".proto", ".cu", ".cuh", ".sh"}
MARKER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
DOC_PATH = re.compile(r"`([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.*-]+)+/?)`|\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)")


def tracked():
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout.decode()
    return [name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def is_source(name):
    path = ROOT / name
    if path.suffix in SOURCE:
        return True
    with path.open("rb") as file:
        return path.suffix == "" and file.read(2) == b"#!"


def source_faults(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    if not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:2]):
        yield f"{name}: no SPDX-License-Identifier in its first two lines"
    if len(lines) > MAX_LINES and name not in LONG_FILES:
        yield f"{name}: {len(lines)} lines, more than {MAX_LINES} without a reason in check_tree.py"
    for number, line in enumerate(lines, 1):
        if MARKER.search(line):
            yield f"{name}:{number}: left-over marker"


def document_faults(name):
    """A path in backticks counts when its first folder is one of ours; a link always does."""
    text = (ROOT / name).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    tops = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("build", ".git")}
    for quoted, link in DOC_PATH.findall(text):
        if link:
            if not (ROOT / name).parent.joinpath(link).exists():
                yield f"{name}: links to {link}, which does not exist"
        elif quoted.split("/")[0] in tops and not list(ROOT.glob(quoted.rstrip("/"))):
            yield f"{name}: names {quoted}, which does not exist"


def main():
    faults, sources, documents = [], 0, 0
    for name in tracked():
        if name.startswith(("tests/golden/", "models/")):
            continue  # recorded data and its provenance notes
        if is_source(name):
            sources += 1
            faults += source_faults(name)
        elif name.endswith(".md"):
            documents += 1
            faults += document_faults(name)
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"tree: {sources} sources and {documents} documents, {len(faults)} faults")
    return 1 if faults or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
