# SPDX-License-Identifier: Apache-2.0
"""The Markdown of a run."""

import figures

# Other ends of a ratio than these say nothing.
SPREAD_WORTH_A_WORD = 1.15


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def cell(row: dict, figure: str) -> str:
    return number(row[figure]["median"]) if figure in row else "-"


def speeds(run: dict) -> list[str]:
    """Every engine's tokens/s, prefill, memory and start."""
    settings, summary = run["settings"], run["summary"]
    columns = {f"{n} in flight": f"tokens/s {n}" for n in settings["streams"]}
    columns |= {f"decode {n}": f"decode {n}" for n in settings["streams"]}
    columns |= {f"prefill {n}": f"prefill {n}" for n in settings["prefill"]}
    columns |= {"peak MiB": "rss", "start s": "start"}
    rows = [[engine, *(cell(summary[engine], f) for f in columns.values())] for engine in order(run)]
    return table(["engine", *columns], rows)


def latencies(run: dict) -> list[str]:
    """p50 / p99 in milliseconds."""
    settings, summary = run["settings"], run["summary"]
    head, rows = ["engine"], []
    for kind, title in (("ttft", "first token"), ("itl", "between tokens")):
        head += [f"{title}, {n}" for n in settings["streams"]]
    for engine in order(run):
        row = [engine]
        for kind in ("ttft", "itl"):
            for n in settings["streams"]:
                p50, p99 = (cell(summary[engine], f"{kind} {p} {n}") for p in ("p50", "p99"))
                row.append(f"{p50} / {p99}")
        rows.append(row)
    return table(head, rows)


def ratios(run: dict) -> list[str]:
    """The best of normserve's kinds against the best rival, by figure."""
    settings = run["settings"]
    names = [f"tokens/s {n}" for n in settings["streams"]]
    names += [f"decode {n}" for n in settings["streams"]] + [f"prefill {n}" for n in settings["prefill"]]
    rows = []
    for name in names:
        own = figures.best(run["summary"], name, own=True)
        rival = figures.best(run["summary"], name, own=False)
        if own and rival:
            ratio = f"{own[1] / rival[1]:.2f}"
            rows.append([name, own[0], number(own[1]), rival[0], number(rival[1]), ratio])
    return table(["figure", "normserve", "", "best rival", "", "ratio"], rows) if rows else []


def order(run: dict) -> list[str]:
    """Engines as they were asked for, without those that never gave a figure."""
    return [engine for engine in run["settings"]["engines"] if engine in run["summary"]]


def widest(run: dict) -> tuple[float, str]:
    """The widest spread of a tokens/s figure over the rounds, most / least, and where it was."""
    spreads = [
        (value["most"] / value["least"], f"{engine}, {name}")
        for engine, row in run["summary"].items()
        for name, value in row.items()
        if name.startswith("tokens/s")
    ]
    return max(spreads, default=(1.0, ""))


def notes(run: dict) -> list[str]:
    settings, limits = run["settings"], run["limits"]
    rounds = {e: max(v["rounds"] for v in row.values()) for e, row in run["summary"].items()}
    most = max(rounds.values(), default=0)
    fewer = "".join(f", {engine} of {count}" for engine, count in rounds.items() if count < most)
    lines = [
        f"{settings['processor']}, {settings['threads']} threads, prompt {settings['prompt_tokens']}, output "
        f"{settings['output_tokens']}, all requests at once, distinct random prompts, greedy, end of "
        f"sequence ignored, prefill counted but in the decode columns; medians of {most} rounds{fewer}.",
        "normserve is called through gRPC, its own client on the same cores; every other engine is a "
        "library in process, without server or client.",
        f"Limits measured in the same run: {limits['read_gb_per_s']:.1f} GB/s read, "
        f"{limits['fp32_gflops']:.0f} float32 GFLOP/s; so at most "
        + " and ".join(f"{number(v)} tokens/s ({name})" for name, v in limits["allowed"].items())
        + ".",
    ]
    spread, where = widest(run)
    if spread > SPREAD_WORTH_A_WORD:
        lines.append(f"Widest spread over the rounds: a factor of {spread:.2f} ({where}).")
    agreement = run.get("agreement", {})
    if agreement:
        text = ", ".join(f"{engine} {count}" for engine, count in agreement.items())
        lines.append(f"Leading tokens equal to {run['reference']}'s, of {run['check_tokens']}: {text}.")
    versions = run["versions"]
    lines.append("Versions: " + "; ".join(f"{engine}: {v}" for engine, v in versions.items()) + ".")
    return lines


def without_figures(run: dict) -> list[str]:
    lines = [f"- {engine}: not installed; `{command}`" for engine, command in run["not_installed"].items()]
    return lines + [f"- {engine}: failed in a round: {why}" for engine, why in run["failed"].items()]


def markdown(run: dict) -> str:
    parts = [
        ["Output tokens/s:", "", *speeds(run)],
        ["Milliseconds, p50 / p99:", "", *latencies(run)],
        ratios(run),
        [line for note in notes(run) for line in (note, "")][:-1],
        without_figures(run),
        [f"`{run['command']}`"],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
