"""Tables and plots of what was measured."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

Rows = dict[str, dict[str, list[float]]]
HEADS = {"p50": "p50", "p99": "p99", "cpu": "CPU", "rps": "requests/s"}


def table(title: str, rows: Rows) -> str:
    """A Markdown table: the base in absolute figures, the others as ratios to it, with quartiles."""
    from benchmarks.compare import ratio

    names = list(rows)
    base = rows[names[0]]
    lines = [f"### {title}", "", "| | " + " | ".join(HEADS.values()) + " |", "|---|" + "---|" * len(HEADS)]
    middle = {metric: statistics.median(base[metric]) for metric in HEADS}
    lines.append(
        f"| {names[0]} | {middle['p50']:.0f} µs | {middle['p99']:.0f} µs | {middle['cpu']:.1f} ms/1,000 "
        f"| {middle['rps']:.0f} |"
    )
    for name in names[1:]:
        cells = []
        for metric in HEADS:
            value, low, high = ratio(rows[name][metric], base[metric])
            cells.append(f"{value:.2f} ({low:.2f}–{high:.2f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(folder: Path, results: dict[str, Rows], titles: dict[str, str], machine: str, command: str) -> None:
    """results.json, results.md, and a plot per metric where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine, "command": command, "titles": titles, "results": results}
    (folder / "results.json").write_text(json.dumps(whole, indent=1))
    text = [f"{machine}\n\n`python -m benchmarks {command}`\n"]
    text += [table(titles[name], rows) for name, rows in results.items()]
    (folder / "results.md").write_text("\n".join(text))
    for metric, head in (("p50", "p50 / plain uvicorn"), ("cpu", "CPU per request / plain uvicorn")):
        _plot(folder / f"{metric}.png", results, titles, metric, head)


def _plot(path: Path, results: dict[str, Rows], titles: dict[str, str], metric: str, label: str) -> None:
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    from benchmarks.compare import ratio

    count = len(results)
    figure, axes = pyplot.subplots(count, 1, figsize=(8, 2.4 * count), squeeze=False)
    for axis, (name, rows) in zip(axes[:, 0], results.items(), strict=True):
        names = list(rows)
        values = [ratio(rows[each][metric], rows[names[0]][metric]) for each in names]
        errors = [[v[0] - v[1] for v in values], [v[2] - v[0] for v in values]]
        axis.barh(names, [v[0] for v in values], xerr=errors, color="#4c78a8", ecolor="#888888")
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.invert_yaxis()
        axis.set_title(titles[name], fontsize=9)
        axis.tick_params(labelsize=8)
    axes[-1, 0].set_xlabel(label, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
