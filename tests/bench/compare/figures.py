# SPDX-License-Identifier: Apache-2.0
"""From the times of tokens to figures, and from the figures of rounds to medians. Pure functions.

A figure is named by a string: "tokens/s 8" (8 requests in flight), "decode 8", "ttft p50 8" (ms),
"itl p99 8" (ms), "prefill 512" (tokens/s), "rss" (MiB), "start" (s).
"""

import math
import statistics


def percentile(values: list[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def decode_tokens_per_s(times: list[list[float]]) -> float | None:
    """While every request decodes: after the last one's first token, until the first one's last token.

    None when that time is too short to tell: less than two tokens of every request.
    """
    begin = max(row[0] for row in times)
    end = min(row[-1] for row in times)
    tokens = sum(1 for row in times for moment in row if begin < moment <= end)
    return tokens / (end - begin) if tokens >= 2 * len(times) else None


def of_load(streams: int, answer: dict) -> dict[str, float]:
    """answer: {"seconds", "times"} of `streams` requests sent at once."""
    times = answer["times"]
    gaps = [after - before for row in times for before, after in zip(row, row[1:])]
    first = [row[0] for row in times]
    figures = {
        f"tokens/s {streams}": sum(map(len, times)) / answer["seconds"],
        f"decode {streams}": decode_tokens_per_s(times),
        f"ttft p50 {streams}": 1e3 * percentile(first, 0.5),
        f"ttft p99 {streams}": 1e3 * percentile(first, 0.99),
    }
    if gaps:
        figures[f"itl p50 {streams}"] = 1e3 * percentile(gaps, 0.5)
        figures[f"itl p99 {streams}"] = 1e3 * percentile(gaps, 0.99)
    return {name: value for name, value in figures.items() if value is not None}


def medians(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """rounds: engine -> figure -> value, per round. Gives engine -> figure -> {median, least, most}."""
    collected: dict[str, dict[str, list[float]]] = {}
    for one in rounds:
        for engine, figures in one.items():
            for name, value in figures.items():
                collected.setdefault(engine, {}).setdefault(name, []).append(value)
    return {
        engine: {
            name: {"median": statistics.median(v), "least": min(v), "most": max(v), "rounds": len(v)}
            for name, v in figures.items()
        }
        for engine, figures in collected.items()
    }


def best(summary: dict, figure: str, own: bool) -> tuple[str, float] | None:
    """The engine with the highest median, among normserve's kinds or among the rivals."""
    values = {
        engine: figures[figure]["median"]
        for engine, figures in summary.items()
        if figure in figures and engine.startswith("normserve") == own
    }
    if not values:
        return None
    engine = max(values, key=values.get)
    return engine, values[engine]


def leading_equal(ids: list[int], others: list[int]) -> int:
    """How many tokens are the same before the first that differs."""
    for number, (one, other) in enumerate(zip(ids, others)):
        if one != other:
            return number
    return min(len(ids), len(others))
