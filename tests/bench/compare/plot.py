# SPDX-License-Identifier: Apache-2.0
"""A run as SVG: tokens/s as bars, one panel per number of requests in flight, written as plain text."""

from xml.sax.saxutils import escape

BAR, GAP, LABEL, BARS, VALUE, TITLE = 16, 5, 170, 300, 60, 34
OWN, RIVAL = "#1f6f8b", "#b8b8b8"


def text(x: float, y: float, content: str, anchor: str = "start", weight: str = "normal") -> str:
    style = f'font-size="12" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(content)}</text>'


def panel(left: float, top: float, title: str, values: dict[str, float]) -> list[str]:
    """Horizontal bars, longest first."""
    most = max(values.values())
    parts = [text(left + LABEL, top + 18, title, weight="bold")]
    for row, (name, value) in enumerate(sorted(values.items(), key=lambda item: -item[1])):
        y = top + TITLE + row * (BAR + GAP)
        width = BARS * value / most
        colour = OWN if name.startswith("normserve") else RIVAL
        bar = f'x="{left + LABEL:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}"'
        parts.append(f'<rect {bar} fill="{colour}"/>')
        parts.append(text(left + LABEL - 6, y + BAR - 4, name, anchor="end"))
        parts.append(text(left + LABEL + width + 4, y + BAR - 4, f"{value:.0f}"))
    return parts


def svg(run: dict) -> str:
    """Two panels abreast."""
    wide = LABEL + BARS + VALUE
    tall = TITLE + len(run["summary"]) * (BAR + GAP) + 16
    parts, panels = [], 0
    for streams in run["settings"]["streams"]:
        name = f"tokens/s {streams}"
        values = {e: f[name]["median"] for e, f in run["summary"].items() if name in f}
        if values:
            title = f"{streams} in flight, output tokens/s"
            parts += panel((panels % 2) * wide, (panels // 2) * tall, title, values)
            panels += 1
    size = f'width="{2 * wide}" height="{(panels + 1) // 2 * tall}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
