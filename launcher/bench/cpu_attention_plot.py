"""The figures of `bench cpu-attention` as a picture: how many times faster than upstream, a panel per head size, model.

`bench cpu-attention --record` draws it beside the record; `python -m launcher.bench.cpu_attention_plot RECORD` anew.
Knows only the record's rows: a case that was not measured leaves a gap.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_KINDS = (
    *(f"decode {depth}" for depth in ("0.5k", "2k", "8k", "32k")),
    *(f"{rows} rows 4k" for rows in (2, 4, 8, 16)),
    "prefill 4k",
)
_DEPTHS = ("0", "2k", "8k")
_COLOURS = {"f16": "#4477aa", "q8_0": "#228833", "q4_0": "#ee6677", "q8_0:q4_0": "#aa7733"}
_TOP, _BOTTOM, _LEFT, _GAP, _STEP = 40, 90, 40, 34, 38  # pixels; _STEP: from one case to the next
_HEIGHT, _OCTAVE = 300, 50  # of the panels, and of a factor of two


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    kinds: Sequence[str]
    case: str  # of the rows, with {kind} and {tier}

    @property
    def width(self) -> int:
        return _STEP * len(self.kinds)


def _panels(ratios: Mapping[str, float]) -> list[_Panel]:
    found = [_Panel(f"head {n}", _KINDS, f"head{n} {{kind}} {{tier}}") for n in (64, 128, 256)]
    found += [_Panel(f"{name}, tokens/s", _DEPTHS, f"{name} {{tier}} {{kind}}") for name in ("smollm2", "gemma3")]
    return [p for p in found if any(p.case.format(kind=k, tier=t) in ratios for k in p.kinds for t in _COLOURS)]


def plot(rows: Sequence[Mapping[str, Any]]) -> str:
    """Ratios on a logarithmic scale as SVG: a point per case, a line per tier, 1 is upstream."""
    ratios = {str(r["case"]): float(r["value"]) for r in rows if r["metric"] == "ratio"}
    panels = _panels(ratios)
    lines = []
    x = _LEFT
    for panel in panels:
        lines += _draw(panel, x, ratios)
        x += panel.width + _GAP
    for number, (tier, colour) in enumerate(_COLOURS.items()):
        lines.append(f'<text x="{_LEFT + 90 * number}" y="14" fill="{colour}" font-weight="bold">{escape(tier)}</text>')
    size = f'width="{x}" height="{_TOP + _HEIGHT + _BOTTOM}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]) + "\n"


def _y(ratio: float) -> float:
    return _TOP + _HEIGHT - _OCTAVE * (0.5 + math.log2(max(ratio, 0.71)))


def _draw(panel: _Panel, x: int, ratios: Mapping[str, float]) -> list[str]:
    lines = [f'<text x="{x}" y="{_TOP - 8}" font-weight="bold">{escape(panel.title)}</text>']
    for power in range(6):
        y = _y(2**power)
        stroke = "black" if power == 0 else "#dddddd"
        lines.append(f'<line x1="{x}" x2="{x + panel.width}" y1="{y}" y2="{y}" stroke="{stroke}"/>')
        lines.append(f'<text x="{x - 4}" y="{y + 4}" text-anchor="end">{2**power}×</text>')
    for number, kind in enumerate(panel.kinds):
        place = f"{x + _STEP * (number + 0.5) + 4:.0f} {_TOP + _HEIGHT + 8}"
        x0, y0 = place.split()
        turn = f'transform="rotate(-60 {place})" text-anchor="end"'
        lines.append(f'<text x="{x0}" y="{y0}" {turn}>{escape(kind)}</text>')
    for tier, colour in _COLOURS.items():
        names = [panel.case.format(kind=kind, tier=tier) for kind in panel.kinds]
        points = [(x + _STEP * (number + 0.5), _y(ratios[name])) for number, name in enumerate(names) if name in ratios]
        if points:
            path = " ".join(f"{px:.0f},{py:.1f}" for px, py in points)
            lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines += [f'<circle cx="{px:.0f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
    return lines


def draw(record: Path) -> Path:
    """The SVG beside a record."""
    picture = record.with_suffix(".svg")
    picture.write_text(plot(json.loads(record.read_text("utf-8"))["rows"]), "utf-8")
    return picture


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
