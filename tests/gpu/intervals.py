# SPDX-License-Identifier: Apache-2.0
"""Medians, their intervals, and ratios of interleaved rounds."""
import math
import statistics


def median_interval(values: list[float]) -> tuple[float, float]:
    """Holds the true median with at least 95 %, whatever the distribution (order statistics). Fewer than 6 values
    cannot say that: their whole range."""
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0  # `below`: the chance that at most k - 1 values are below the median
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if below > 0.025:
            break
        k += 1
    k = max(k - 1, 0)
    return ordered[k], ordered[n - 1 - k]


def summary(values: list[float]) -> dict:
    low, high = median_interval(values)
    return {"median": statistics.median(values), "low": low, "high": high, "samples": len(values)}


def ratio(values: list[float], others: list[float]) -> dict:
    """Of what was measured in the same rounds, round by round."""
    return summary([a / b for a, b in zip(values, others)])
