"""Draw one later step of each implementation in a trace: what the host does, what the device does, on one scale of time.

`python benchmarks/draw_trace.py step.json.gz -o trace.png`. Needs matplotlib and the package.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from physarum.profiling.reader import CALLS, DEVICE, LABEL, LAUNCHES, Event, read_events

COLOURS = {"sense": "#3b6fb6", "motor": "#5aa469", "deposit": "#d98b2b", "diffuse": "#a3599b", "decay": "#c2504d"}
SETTLED = 5  # the step of each implementation that is drawn, counted from 0, or its last


def main() -> None:
    """Draw."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("trace", type=Path)
    made.add_argument("-o", "--output", type=Path, required=True, help="a picture, such as trace.png")
    arguments = made.parse_args()
    events = read_events(arguments.trace)
    steps = settled_steps(events)
    if not steps:
        made.error(f"{arguments.trace} has no implementation with two steps or more")
    figure, axes = plt.subplots(len(steps), 1, figsize=(10, 1.5 * len(steps) + 0.6), sharex=True, squeeze=False)
    for (name, step), panel in zip(steps.items(), axes[:, 0], strict=True):
        draw(panel, name, step, events)
    patches = [Patch(color=stage_colour, label=stage) for stage, stage_colour in COLOURS.items()]
    axes[-1, 0].legend(handles=patches, loc="center right", fontsize=8, frameon=False, ncols=5)
    axes[-1, 0].set_xlabel("microseconds since the step began, under the profiler")
    figure.tight_layout()
    figure.savefig(arguments.output, dpi=110)


def settled_steps(events: list[Event]) -> dict[str, Event]:
    """A step of each implementation, by its name, in order of time."""
    labels = sorted((event for event in events if event.category == LABEL), key=lambda event: event.start)
    steps = [label for label in labels if label.name.startswith("step ")]
    found = {}
    for outer in labels:
        inside = [step for step in steps if outer is not step and outer.start <= step.start < outer.end]
        if len(inside) > 1 and not outer.name.startswith("step "):
            found[outer.name] = inside[min(SETTLED, len(inside) - 1)]
    return found


def draw(panel: Axes, name: str, step: Event, events: list[Event]) -> None:
    """A panel: stages and launches of the host above, operations of the device below."""
    inside = [event for event in events if event.track == step.track and step.start <= event.start < step.end]
    calls = {event.correlation: event for event in inside if event.category in CALLS and event.correlation is not None}
    panel.broken_barh([(0, step.duration)], (1.75, 0.35), color="#d9d9d9")
    stages = [event for event in inside if event.category == LABEL and event.name.split("+")[0] in COLOURS]
    for stage in stages:
        panel.broken_barh([(stage.start - step.start, stage.duration)], (1.35, 0.35), color=colour(stage.name))
    launches = [event for event in calls.values() if event.name in LAUNCHES]
    panel.vlines([event.start - step.start for event in launches], 1.0, 1.3, color="black", linewidth=0.6)
    busy = 0.0
    for event in events:
        call = calls.get(event.correlation) if event.category in DEVICE else None
        if call is not None:
            stage_name = next((s.name for s in stages if s.start <= call.start < s.end), "")
            panel.broken_barh([(event.start - step.start, event.duration)], (0.2, 0.5), color=colour(stage_name))
            busy += event.duration
    said = f"{name}: {len(launches)} launches, {step.duration:,.0f} us on the host, in which the device works {busy:,.1f} us"
    panel.text(0, 2.2, said, va="bottom", fontsize=9)
    panel.set_ylim(0, 2.8)
    panel.set_yticks([0.45, 1.15, 1.52, 1.92], ["device", "launches", "stages", "step"], fontsize=8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(length=0, axis="y")


def colour(stage: str) -> str:
    """That of the first stage that a label names."""
    return COLOURS.get(stage.split("+", maxsplit=1)[0], "#555555")


if __name__ == "__main__":
    main()
