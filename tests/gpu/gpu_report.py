# SPDX-License-Identifier: Apache-2.0
"""The check's results as JSON and as Markdown."""
import json
import pathlib

import generation

NOT_MEASURED = "not measured"
RAN = "ran"
# Of figures: what has a speed in it. A dry run has no such numbers.
SPEEDS = {"us", "host_us", "bytes_per_second", "share_of_copy", "met", "tokens_per_second", "nominal_limit",
          "share_of_nominal_limit", "measured_limit", "share_of_measured_limit", "copy_bytes_per_second", "median",
          "low", "high"}


def without_speeds(value):
    """The same result with every figure of speed "not measured"."""
    if isinstance(value, dict):
        return {key: NOT_MEASURED if key in SPEEDS else without_speeds(part) for key, part in value.items()}
    return [without_speeds(part) for part in value] if isinstance(value, list) else value


def as_dry(result: dict) -> dict:
    """A row of a dry run: whatever it says, no GPU has said it."""
    result = without_speeds(result)
    if result["status"] == "measured":
        result["status"] = RAN
    return {**result, "title": f"{result['title']} (dry: a few tiny cases)"}


def write_json(path: pathlib.Path, run: dict) -> None:
    """Never half a file: whoever stops the check finds the rows that were done."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(run, indent=1), encoding="utf-8")
    unfinished.rename(path)


def number(value, form: str = ".4g") -> str:
    if value is None:
        return "-"
    return format(value, form) if isinstance(value, (int, float)) else str(value)


def interval(value, form: str = ".4g") -> str:
    if not isinstance(value, dict) or not isinstance(value.get("median"), (int, float)):
        return NOT_MEASURED
    return f"{value['median']:{form}} ({value['low']:{form}} to {value['high']:{form}})"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def status_lines(rows: list[dict]) -> list[str]:
    body = []
    for row in rows:
        figures = row.get("figures")
        parts = figures.items() if isinstance(figures, dict) else []
        said = ", ".join(f"{key} {number(value)}" for key, value in parts)
        body.append([row["title"], row["status"], number(row["seconds"], ".1f"), said])
    return table(["row", "status", "seconds", ""], body)


def norm_lines(ours: dict, torch: dict) -> list[str]:
    theirs = {(f["op"], f["width"], f["rows"], f["mode"]): f["us"] for f in torch.get("figures", [])}
    body = []
    for f in ours.get("figures", []):
        modes = [interval(theirs[key]) if (key := (f["op"], f["width"], f["rows"], mode)) in theirs else "-"
                 for mode in ("eager", "compiled")]
        met = f["met"] if isinstance(f["met"], str) else "yes" if f["met"] else "NO"
        share = number(f["share_of_copy"], ".3f")
        body.append([f["op"], str(f["width"]), str(f["rows"]), interval(f["us"], ".3g"), share, f["goal"],
                     met if f["goal"] else "", *modes, number(f["host_us"], ".3g")])
    head = ["operator", "width", "rows", "us in a graph", "of a copy's bandwidth", "goal", "met", "torch eager, us",
            "torch.compile, us", "host, us per call"]
    return ["### Norms", "", *table(head, body)] if body else []


def generation_lines(rows: list[dict]) -> list[str]:
    body, ratios = [], []
    for row in rows:
        for f in row.get("figures", []):
            limits = [number(f.get("measured_limit"))]
            limits += [number(f.get(f"share_of_{which}_limit"), ".3f") for which in ("measured", "nominal")]
            rate = interval(f["tokens_per_second"])
            body.append([f["model"], f["shape"], f["flags"] or "-", str(f["batch"]), rate, *limits])
        for r in row.get("ratios", []):
            ratios.append([r["ratio"], str(r["batch"]), row["title"], interval(r, ".4f")])
    if not body:
        return []
    nominal = generation.NOMINAL_BYTES_PER_SECOND / 1e12
    paper = (f"BHyT's paper has {generation.PAPER_TOKENS_PER_SECOND} tokens/s for its 1 B model (figure 1; it names no GPU). "
             f"Limit: every weight is read once per step, at a copy's measured bandwidth, or at an H200's {nominal} TB/s "
             "(nominal, whatever GPU this is).")
    head = ["model", "shape", "flags", "batch", "tokens/s (95 % interval)", "limit", "of it", "of the nominal one"]
    return ["### Generation", "", paper, "", *table(head, body), "### Ratios", "",
            *table(["ratio", "batch", "row", "median (95 % interval)"], ratios)]


def markdown(run: dict) -> str:
    rows = {row["name"]: row for row in run["rows"]}
    lines = [f"# Check of the CUDA device: {run['device']}", ""]
    if run["dry"]:
        lines += ["A dry run on the emulated device: nothing here was measured on a GPU, and what passed did so there.", ""]
    lines += status_lines(run["rows"])
    problems = [f"- {row['title']}: {problem}" for row in run["rows"] for problem in row.get("problems", [])]
    lines += ["### Problems", "", *problems, ""] if problems else []
    lines += norm_lines(rows.get("norms", {}), rows.get("norms_torch", {}))
    lines += generation_lines([row for row in run["rows"] if row["name"].startswith("generation")])
    return "\n".join(lines)
