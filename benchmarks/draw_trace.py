"""Draw one later step of each implementation in a trace: what the host does, what the device does, on one scale of time.

`python benchmarks/draw_trace.py step.json.gz -o trace.png`. Needs matplotlib and the package.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from physarum.errors import UsageError
from physarum.profiling.reader import CALLS, DEVICE, LABEL, LAUNCHES, Event, read_events

COLOURS = {"sense": "#3b6fb6", "motor": "#5aa469", "deposit": "#d98b2b", "diffuse": "#a3599b", "decay": "#c2504d"}
GREY, NOT_APART = "#555555", "not apart"
SETTLED = 5  # the step of each implementation that is drawn, counted from 0, or its last


def main() -> None:
    """Draw."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("trace", type=Path)
    made.add_argument("-o", "--output", type=Path, required=True, help="a picture, such as trace.png")
    arguments = made.parse_args()
    try:
        events = read_events(arguments.trace)
    except UsageError as error:
        made.error(str(error))
    steps = settled_steps(events)
    if not steps:
        made.error(f"{arguments.trace} has no implementation with two steps or more")
    figure, axes = plt.subplots(len(steps), 1, figsize=(10, 1.5 * len(steps) + 0.6), sharex=True, squeeze=False)
    for (name, step), panel in zip(steps.items(), axes[:, 0], strict=True):
        draw(panel, name, step, events)
    patches = [Patch(color=colour, label=stage) for stage, colour in (COLOURS | {NOT_APART: GREY}).items()]
    figure.legend(handles=patches, loc="upper right", fontsize=8, frameon=False, ncols=6)
    axes[-1, 0].set_xlabel("microseconds since the step began, under the profiler")
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    try:
        figure.savefig(arguments.output, dpi=110)
    except (OSError, ValueError) as error:
        made.error(f"{arguments.output} cannot be written: {error}")


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
    calls: dict[int | None, Event] = {
        event.correlation: event for event in inside if event.category in CALLS and event.correlation is not None
    }
    panel.broken_barh([(0, step.duration)], (1.75, 0.35), color="#d9d9d9")
    stages = [event for event in inside if event.category == LABEL and set(event.name.split("+")) <= COLOURS.keys()]
    for stage in stages:
        bar(panel, stage.start - step.start, stage.duration, (1.35, 0.35), stage.name)
    on_device = [event for event in events if event.category in DEVICE and event.correlation in calls]
    launches = [event for event in calls.values() if event.name in LAUNCHES]
    panel.vlines([event.start - step.start for event in launches], 1.0, 1.3, color="black", linewidth=0.6)
    for event in on_device:
        launched = calls[event.correlation].start
        stage_name = next((stage.name for stage in stages if stage.start <= launched < stage.end), NOT_APART)
        bar(panel, event.start - step.start, event.duration, (0.2, 0.5), stage_name)
    said = f"{name}: {step.duration:,.0f} us on the host"
    if on_device:
        said += f", {len(launches)} launches, for which the device works {sum(event.duration for event in on_device):,.1f} us"
    panel.text(0, 2.2, said, va="bottom", fontsize=9)
    panel.set_ylim(0, 2.8)
    panel.set_yticks([0.45, 1.15, 1.52, 1.92], ["device", "launches", "stages", "step"], fontsize=8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(length=0, axis="y")


def bar(panel: Axes, start: float, duration: float, place: tuple[float, float], stage: str) -> None:
    """A span in the colour of its stage; in those of all its stages, one above the other, where it does several."""
    (bottom, height), parts = place, stage.split("+")
    for i, part in enumerate(reversed(parts)):
        panel.broken_barh([(start, duration)], (bottom + i * height / len(parts), height / len(parts)), color=COLOURS.get(part, GREY))


if __name__ == "__main__":
    main()
