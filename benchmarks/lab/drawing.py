"""The picture of the lab: how long the rungs of a ladder take, bandwidth by size, matrix products by size. Needs matplotlib."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import Row, median_us, save_picture
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#3b6fb6", "#d98b2b", "#5aa469", "#a3599b", "#c2504d")
GREY = "#555555"
LADDERS = ("gelu", "softmax")
PANEL = (5.6, 3.7)  # inches


def draw(rows: Sequence[Row], bandwidth: float, path: Path) -> None:
    """Draw a panel for each operator that was measured.

    Args:
        rows: That were measured.
        bandwidth: Bytes a second of a copy.
        path: A picture of a kind that matplotlib knows.
    """
    by_operator: dict[str, list[Row]] = {}
    for row in rows:
        by_operator.setdefault(row["case"]["operator"], []).append(row)
    panels = [(name, by_operator[name]) for name in PANELS if name in by_operator]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * lines), layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.remove()
    for axes, (name, of_operator) in zip(places, panels, strict=False):
        PANELS[name](axes, of_operator, bandwidth)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    save_picture(figure, path)


def ladder(axes: Axes, rows: Sequence[Row], bandwidth: float) -> None:
    """A bar for each implementation on the largest input, the slowest above, and the time of a copy as a line."""
    most = max(row["bytes"] for row in rows)
    largest = [row for row in rows if row["bytes"] == most]
    cold = [row for row in largest if row["l2"] == "cold"]
    largest = cold or largest  # times with an emptied cache do not hold the host's
    largest = [row for row in largest if row["case"]["size"] == largest[0]["case"]["size"]]
    largest.sort(key=median_us)
    times = [median_us(row) / 1000 for row in largest]
    names = [row["case"]["implementation"] for row in largest]
    axes.barh(names, times, color=[COLOURS[0] if name != "operator by operator" else GREY for name in names], height=0.62)
    for place, (time, row) in enumerate(zip(times, largest, strict=True)):
        launches = row.get("host_launches")
        said = "" if launches is None else f", {launches} launch" + ("es" if launches > 1 else "")
        axes.text(time + 0.015 * max(times), place, f"{time:,.3g} ms{said}", va="center", fontsize=8)
    copy = most / bandwidth * 1000
    axes.axvline(copy, color=COLOURS[4], linewidth=1.2, linestyle="--")
    axes.annotate("a copy", (copy, 1.0), xycoords=("data", "axes fraction"), color=COLOURS[4], fontsize=8, ha="center", va="bottom")
    axes.set_xlim(0, 1.4 * max(times))  # room for words
    axes.set_xlabel("milliseconds")
    axes.tick_params(axis="y", length=0)
    case = largest[0]["case"]
    axes.set_title(f"{case['operator']} of {case['size'].replace('x', ' x ')}, {case['type']}", fontsize=10, pad=14)


def bandwidths(axes: Axes, rows: Sequence[Row], bandwidth: float) -> None:
    """Bandwidth over size: a line for each implementation, dashed where L2 was emptied before."""
    names = list(dict.fromkeys(row["case"]["implementation"] for row in rows))
    for name, colour in zip(names, COLOURS, strict=False):
        for l2, style in (("warm", "-"), ("cold", "--")):
            points = [row for row in rows if row["case"]["implementation"] == name and row["l2"] == l2]
            if points:
                label = name if l2 == "warm" else f"{name}, L2 emptied"
                line(axes, points, "input_bytes", "bytes_per_s", 1e9, color=colour, linestyle=style, label=label)
    axes.axhline(bandwidth / 1e9, color=GREY, linewidth=1, linestyle=":")
    axes.annotate("a large copy", (0.01, bandwidth / 1e9), xycoords=("axes fraction", "data"), color=GREY, fontsize=8, va="bottom")
    finish(axes, "relu: read once, written once", "bytes of the input", "GB/s")
    axes.set_xticks(sorted({row["case"]["input_bytes"] for row in rows})[::2])
    axes.xaxis.set_major_formatter(lambda value, _: binary(value))


def products(axes: Axes, rows: Sequence[Row], bandwidth: float) -> None:  # noqa: ARG001 (no roof of bytes here)
    """Operations a second over size, a line for each precision."""
    for name, colour in zip(dict.fromkeys(row["case"]["precision"] for row in rows), COLOURS, strict=False):
        points = [row for row in rows if row["case"]["precision"] == name]
        line(axes, points, "size", "flop_per_s", 1e12, color=colour, label=name)
    finish(axes, "the product of two square matrices", "rows of each", "TFLOP/s")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def line(axes: Axes, rows: Sequence[Row], across: str, figure: str, unit: float, **style: Any) -> None:
    """A figure of some rows over a number of their cases."""
    axes.plot(
        [row["case"][across] for row in rows], [row[figure] / unit for row in rows], marker="o", markersize=3.5, linewidth=1.4, **style
    )


def finish(axes: Axes, title: str, across: str, up: str) -> None:
    """Logarithmic scales, a grid and words."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)


def binary(size: float) -> str:
    """Bytes in words: 4 KiB, 1 GiB."""
    for unit in ("", "Ki", "Mi"):
        if size < 1024:
            return f"{size:.0f} {unit}B"
        size /= 1024
    return f"{size:.0f} GiB"


PANELS: dict[str, Callable[[Axes, Sequence[Row], float], None]] = {
    **dict.fromkeys(LADDERS, ladder),
    "relu": bandwidths,
    "matmul": products,
}
