#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up test results: JUnit files (GoogleTest's, pytest's, ctest's) under a folder.

Prints "PASSED FAILED SKIPPED" and, on standard error, the name of every failed case. A GoogleTest
binary that died before writing its own file is counted through ctest's file, as one failure.
"""
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.get("status") == "fail":
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
        return "skipped"
    if case.get("result") in ("skipped", "suppressed"):
        return "skipped"
    return "passed"


def cases(path):
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        yield name, outcome(case)


def main(folder):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    folder = pathlib.Path(folder)
    detailed = {path.stem for path in folder.glob("gtest/*.xml")}
    for path in sorted(folder.rglob("*.xml")):
        for name, result in cases(path):
            if path.name == "ctest.xml":
                # A binary whose own file tells each case is counted there, unless it failed and its
                # file does not say so (a crash after the last case).
                binary = name.split(".")[-1]
                if binary in detailed and result != "failed":
                    continue
                if binary in detailed and any(
                    r == "failed" for _, r in cases(folder / "gtest" / f"{binary}.xml")
                ):
                    continue
            counts[result] += 1
            if result == "failed":
                print(f"  failed: {name} ({path.parent.name}/{path.name})", file=sys.stderr)
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main(sys.argv[1])
