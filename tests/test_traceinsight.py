"""A reader of traces that others wrote understands ours. `pip install -e '.[test,traceinsight]'`, then `pytest -m traceinsight`."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.traceinsight, pytest.mark.filterwarnings("ignore")]  # of its own and of what it imports
RECORDED = Path(__file__).parent / "traces" / "h200.json.gz"


def test_it_gives_its_breakdowns() -> None:
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415 (the extra)

    analysis = TraceAnalysis(trace_files={0: str(RECORDED)}, trace_dir=str(RECORDED.parent))
    times = analysis.get_temporal_breakdown(visualize=False)
    assert times["kernel_time(us)"].item() > times["compute_time(us)"].item() > 0
    labels = analysis.get_gpu_user_annotation_breakdown(visualize=False)
    assert {"sense", "motor", "deposit", "diffuse", "decay", "sense+motor", "diffuse+decay"} <= set(labels["name"])
    (idle, _) = analysis.get_idle_time_breakdown(visualize=False)
    assert idle["idle_time"].sum() > 0


def test_it_opens_a_trace_that_was_recorded_without_a_gpu() -> None:
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415 (the extra)

    path = RECORDED.with_name("cpu.json.gz")
    trace = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent)).t
    assert {"torch", "compile", "compile, whole step", "step 0", "sense", "motor", "deposit"} <= set(trace.symbol_table.get_sym_table())
    assert len(trace.get_trace(0)) > 1000
