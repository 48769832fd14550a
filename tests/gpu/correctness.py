# SPDX-License-Identifier: Apache-2.0
"""Rows of the check that say whether the device computes what it should."""
import collections
import os
import re
import shutil

from programs import OUT_OF_TIME, ROOT, Context, NotRun, json_lines, lines_of, packed

DRY_CASES = ["bhyt_rms_gqa", "bhyt_bf16_varfp32"]
DRY_TESTS = "WidenCuda.*:GatherCuda.NoRows"
NORM_TESTS = "NormCuda/*"


def golden(context: Context, *flags: str) -> dict:
    command = [context.program("golden_on_device"), "--device", context.device, *flags,
               *(DRY_CASES if context.dry else [])]
    cases, problem = json_lines(context, "golden" + "".join(flags), command, cwd=ROOT / "tests", env=context.environment())
    failed = [f"{case['case']}: {case['problem']}" for case in cases if case["problem"]]
    figures = {"cases": len(cases), "passed": len(cases) - len(failed)}
    for dtype in ("float32", "bfloat16"):
        largest = [float("inf") if case["largest"] is None else case["largest"] for case in cases
                   if case.get("dtype") == dtype and "largest" in case]
        figures[f"largest difference of a log-probability, {dtype}"] = max(largest, default=None)
    return outcome(figures, failed + ([problem] if problem else []), bool(cases))


def outcome(figures: dict, problems: list[str], anything: bool) -> dict:
    if not anything and not problems:
        problems = ["nothing was checked"]
    late = all(OUT_OF_TIME in problem for problem in problems)
    status = "passed" if not problems else "incomplete: out of time" if late else "failed"
    return {"status": status, "figures": figures, "problems": problems}


def of_googletest(lines: list[str]) -> tuple[dict[str, list[int]], list[str]]:
    """Per suite: tests that passed and tests that ran; and the names of those that failed."""
    suites, failed = collections.defaultdict(lambda: [0, 0]), []
    for line in lines:
        match = re.match(r"\[( +OK | {2}FAILED {2})\] ([\w/]+)\.([\w/]+).*\(\d+ ms\)$", line)
        if not match:
            continue
        passed, suite, test = "OK" in match[1], match[2].split("/")[0], f"{match[2]}.{match[3]}"
        suites[suite][1] += 1
        suites[suite][0] += passed
        if not passed:
            failed.append(test)
    return dict(suites), failed


def kernel_tests(context: Context) -> dict:
    command = [context.program("gpu_kernel_tests"), "--gtest_color=no"]
    command += [f"--gtest_filter={DRY_TESTS}"] if context.dry else []
    environment = context.environment(CUDA_LAUNCH_BLOCKING="1")
    lines, problem = lines_of(context, "kernel_tests", command, env=environment)
    suites, failed = of_googletest(lines)
    figures = {suite: f"{passed} of {ran}" for suite, (passed, ran) in suites.items()}
    return outcome(figures, failed or ([problem] if problem else []), bool(suites))


def sanitizer(context: Context) -> dict:
    """compute-sanitizer over the norms' tests: memory outside of objects, then races in shared memory."""
    tool = shutil.which("compute-sanitizer") or next(
        (path for path in ("/usr/local/cuda/bin/compute-sanitizer",) if os.path.exists(path)), None)
    tests = context.program("gpu_kernel_tests")
    if context.dry:
        raise NotRun("not run: the emulated device has no compute-sanitizer")
    if tool is None:
        raise NotRun("not run: no compute-sanitizer here")
    figures, problems = {}, []
    for check, share, memory in (("memcheck", 0.6, {"NORMSERVE_SEPARATE_OBJECTS": "1"}), ("racecheck", 1, {})):
        environment = context.environment(CUDA_LAUNCH_BLOCKING="1", **memory)
        command = [tool, "--tool", check, "--error-exitcode", "9", tests, "--gtest_color=no"]
        command += [f"--gtest_filter={NORM_TESTS}InPlace:{NORM_TESTS}NoRows*:{NORM_TESTS}ResidualOfEveryWidth"]
        lines, problem = lines_of(context, check, command, share, env=environment)
        summaries = [line for line in lines if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
        figures[check] = summaries[-1].strip("= ") if summaries else "no summary"
        problems += [f"{check}: {problem}"] if problem else []
    return outcome(figures, problems, True)


def describe(context: Context) -> dict:
    """What the programs run on; also the first to say that one of them cannot be loaded here."""
    command = [context.program("norm_bench"), "--device", context.device, "--widths", "64", "--rows", "1"]
    _, problem = lines_of(context, "first", [*command, "--samples", "1", "--sample-ms", "0"],
                          env=context.environment())
    return outcome(packed(), [problem] if problem else [], True)
