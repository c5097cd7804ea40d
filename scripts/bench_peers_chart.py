"""The picture of `make bench-peers`: for each number of callers, throughput, latency and CPU as bars."""

import textwrap
from xml.sax.saxutils import escape

from bench_peers_report import basis, times

MARGIN, LABELS, PANEL, GAP = 24, 160, 270, 16
BAR, STEP, HEAD = 18, 27, 38
TEXT, FAINT = "#222222", "#767676"
COLOURS = {"crash": "#1b6ca8", "byzantine": "#0b3c5d"}
PEER = "#b0b7bd"
NOTE_CHARS = 170  # of a line below the bars
UNDER_CHARS = 155  # of a line below the title
PANELS = [
    ("writes_s", "writes a second", lambda row: f"{row['writes_s']:,.0f} (×{times(row['ratio'])})"),
    ("p50_us", "median latency, ms", lambda row: f"{row['p50_us'] / 1000:.2f}"),
    ("server_cpu_us", "server CPU for a write, µs", lambda row: f"{row['server_cpu_us']:.1f}"),
]


def text(x, y, words, size=12, colour=TEXT, anchor="start", weight="normal"):
    words = "".join(c if c.isprintable() else " " for c in words)
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>')


def bars(rows, left, top, panel):
    """One panel: a bar for each system, the longest of which leaves room for its figure."""
    figure, title, label = panel
    parts = [text(left, top - 8, title, colour=FAINT)]
    most = max((row[figure] for row in rows), default=0) or 1
    for i, row in enumerate(rows):
        y = top + i * STEP
        width = (PANEL - 104) * row[figure] / most
        parts.append(f'<rect x="{left}" y="{y}" width="{max(width, 1):.1f}" height="{BAR}" fill="{COLOURS.get(row["system"], PEER)}"/>')
        parts.append(text(left + width + 5, y + BAR - 5, label(row)))
    return parts


def group(rows, callers, top):
    """All panels of one number of callers, with the names of systems before them."""
    parts = [text(MARGIN, top, f"{callers} writes in flight", size=14, weight="bold")]
    top += HEAD
    for i, row in enumerate(rows):
        parts.append(text(MARGIN + LABELS - 10, top + i * STEP + BAR - 5, row["label"], anchor="end"))
    for i, panel in enumerate(PANELS):
        parts += bars(rows, MARGIN + LABELS + i * (PANEL + GAP), top, panel)
    return parts


def notes_of(report):
    """What stands below the bars."""
    notes = ["; ".join(dict.fromkeys(report["versions"].values())) + "."]
    equal = [f"{row['label']} ×{times(row['ratio'])} ({row['callers']} over {row['connections']})" for row in report["medians_equal"]]
    if equal:
        notes.append(f"With a connection for each caller instead, as far as a client has so many: {', '.join(equal)}.")
    return notes + [warning for warning in report["warnings"] if warning.startswith(("VOID", "left out"))]


def draw(report):
    """The picture as SVG, from the report that is written as JSON."""
    load = report["workload"]
    done = report["rounds_done"]
    rounds = f"Medians of {done} interleaved rounds" if done > 1 else "One round"
    under = (f"{rounds} of {load['seconds']:g} s, each client connected as it does best. × is against {basis(report['against'])}, "
             "within a round. CPU is that of all server processes.")
    under = textwrap.wrap(under, UNDER_CHARS)
    parts, top = [], 46 + 16 * len(under)
    for callers in load["callers"]:
        rows = [row for row in report["medians"] if row["callers"] == callers]
        parts += group(rows, callers, top + 30)
        top += 30 + HEAD + len(rows) * STEP + 8
    title = f"Durable writes of {load['value_size']} B, everything on one machine with {report['machine']['processors']} processors"
    notes = [line for note in notes_of(report) for line in textwrap.wrap(note, NOTE_CHARS)]
    parts.append(text(MARGIN, 34, title, size=17, weight="bold"))
    parts += [text(MARGIN, 56 + 16 * i, line, colour=FAINT) for i, line in enumerate(under)]
    parts += [text(MARGIN, top + 24 + 18 * i, note, size=11, colour=FAINT) for i, note in enumerate(notes)]
    width = MARGIN + LABELS + len(PANELS) * PANEL + (len(PANELS) - 1) * GAP + MARGIN
    height = top + 24 + 18 * len(notes) + 6
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'font-family="Helvetica, Arial, sans-serif">\n<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
            + "\n".join(parts) + "\n</svg>\n")
