"""The run page's charts as Plotly figures: built and validated here with plotly.graph_objects, filled in the browser.

A page gets each figure's JSON with empty traces. Every trace says in `meta` which series fills it (`series`), what it is
multiplied by (`scale`) and which colour of the design system it wears (`color`); the browser adds data and theme, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go

from workers.contract.metrics import CATALOGUE


@dataclass(frozen=True)
class Chart:
    """One card of the chart grid. `table` names what its text alternative lists."""

    key: str
    title: str
    text: str
    figure: go.Figure
    wide: bool = False

    @property
    def series(self) -> list[str]:
        return [trace.meta["series"] for trace in self.figure.data if trace.meta.get("series")]

    def as_dict(self) -> dict[str, Any]:
        # to_json is Plotly's own encoder: what it wrote is plain JSON
        figure = json.loads(self.figure.to_json())
        figure["layout"].pop("template", None)
        return {"key": self.key, "title": self.title, "data": figure["data"], "layout": figure["layout"]}


def _line(series: str, color: str, *, name: str = "", scale: float = 1.0, axis: str = "y", **extra: Any) -> go.Scatter:
    """A series as an SVG line: thin, with gaps where a value is not finite."""
    return go.Scatter(
        x=[],
        y=[],
        name=name or CATALOGUE[series].title,
        mode=extra.pop("mode", "lines"),
        yaxis=axis,
        connectgaps=False,
        line={"width": extra.pop("width", 1.8), **extra.pop("line", {})},
        hovertemplate="%{y:.4g}",
        meta={"series": series, "scale": scale, "color": color, **extra.pop("meta", {})},
        **extra,
    )


def _layout(unit: str, *, legend: bool = True, unit_2: str | None = None, **extra: Any) -> go.Layout:
    """What all charts share. Colours and fonts come from the page's theme."""
    axis: dict[str, Any] = {"automargin": True, "zeroline": False, "fixedrange": False, "nticks": 6, "ticks": "", "separatethousands": True}
    second = {
        "yaxis2": {
            **axis,
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "rangemode": "tozero",
            "tickmode": "auto",
            "title": {"text": unit_2},
        }
    }
    return go.Layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 8, "r": 16, "t": 6, "b": 8, "pad": 4},
        xaxis={**axis, "title": {"text": "step", "standoff": 6}},
        yaxis={**axis, "title": {"text": unit, "standoff": 8}, **extra.pop("yaxis", {})},
        hovermode="x unified",
        hoverdistance=40,
        dragmode="zoom",
        showlegend=legend,
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "itemsizing": "constant",
            "traceorder": "normal",
        },
        uirevision="keep",
        **(second if unit_2 else {}),
        **extra,
    )


def _reward() -> Chart:
    traces = [
        _line("reward/mean", "chart-1", name="train, each step", width=1, opacity=0.45),
        _line("reward/mean", "chart-1", name="train, mean of 5 steps", width=2.6, meta={"smooth": 5}),
        _line(
            "eval/reward_mean",
            "chart-2",
            name="held-out",
            mode="lines+markers",
            marker={"size": 8, "symbol": "diamond"},
            line={"dash": "dot"},
            meta={"error": "evaluations"},
            error_y={"type": "data", "array": [], "visible": True, "thickness": 1.2, "width": 3},
        ),
    ]
    layout = _layout("mean reward", yaxis={"rangemode": "tozero"})
    return Chart(
        "reward",
        "Reward",
        "Train: the samples of each step. Held-out: prompts never trained on, at one pinned version, with standard error.",
        go.Figure(traces, layout),
        wide=True,
    )


def _buffer() -> Chart:
    filled = _line("buffer/depth", "chart-1", name="groups waiting", fill="tozeroy", line={"shape": "hv"})
    bound = go.Scatter(
        x=[],
        y=[],
        name="capacity",
        mode="lines",
        line={"width": 1.4, "dash": "dash"},
        hoverinfo="skip",
        meta={"capacity": True, "color": "chart-6"},
    )
    return Chart(
        "buffer",
        "Buffer depth",
        "Complete groups waiting for the trainer. At the dashed line generation is held back; at 0 the trainer waits.",
        go.Figure([filled, bound], _layout("groups", yaxis={"rangemode": "tozero"})),
    )


def _sync() -> Chart:
    traces = [
        _line("sync/latency_s", "chart-1", name="latency", scale=1000, mode="lines+markers", marker={"size": 4}),
        _line("sync/pause_s", "chart-5", name="pause of decoding", scale=1000, mode="lines+markers", marker={"size": 4}),
    ]
    return Chart(
        "sync",
        "Weight sync",
        "Latency: from the start of a publish until every engine serves it. Pause: the extra gap between two decode steps.",
        go.Figure(traces, _layout("ms", yaxis={"rangemode": "tozero"})),
    )


def _sync_phases() -> Chart:
    rows = (("sync/export_s", "export", "chart-1"), ("sync/transfer_s", "transfer", "chart-4"), ("sync/apply_s", "apply", "chart-5"))
    traces = [
        go.Bar(
            x=[],
            y=[],
            name=name,
            marker={"line": {"width": 0}},
            hovertemplate="%{y:.3g} ms",
            meta={"series": series, "scale": 1000.0, "color": color},
        )
        for series, name, color in rows
    ]
    return Chart(
        "sync-phases",
        "Phases of a sync",
        "Export: the trainer writes and hashes. Transfer: engines read and check. Apply: until the pointer is flipped.",
        go.Figure(traces, _layout("ms", barmode="stack", bargap=0.1)),
    )


def _lag() -> Chart:
    # Cells are bars on a base: Plotly's heatmap sets a style attribute, which the content security policy refuses
    heat = go.Bar(
        x=[],
        y=[],
        base=[],
        name="share of the step's tokens",
        marker={"line": {"width": 0}, "showscale": False, "cmin": 0},
        hovertemplate="lag %{text}<extra></extra>",
        meta={"lag": "heat", "color": "chart-1"},
    )
    last = go.Bar(
        x=[],
        y=[],
        name="last step",
        orientation="h",
        xaxis="x2",
        marker={"line": {"width": 0}},
        hovertemplate="lag %{y}: %{x:.1f} % of the last step<extra></extra>",
        meta={"lag": "last", "color": "chart-1"},
    )
    layout = _layout(
        "versions behind", legend=False, yaxis={"dtick": 1, "nticks": None, "rangemode": "normal"}, barmode="overlay", bargap=0.15
    )
    layout.xaxis.domain = [0, 0.76]
    title = {"text": "last step, %", "standoff": 6}
    layout.xaxis2 = {"domain": [0.8, 1], "anchor": "y", "title": title, "nticks": 3, "rangemode": "tozero"}
    layout.hovermode = "closest"
    return Chart(
        "lag",
        "Lag by token",
        "How many versions old each trained token was: the darker, the larger its share of the step. Beside it the last step alone.",
        go.Figure([heat, last], layout),
    )


def _throughput() -> Chart:
    traces = [
        _line("throughput/samples_per_s", "chart-1", name="samples/s trained"),
        _line("throughput/decode_tokens_per_s", "chart-4", name="tokens/s decoded (right)", axis="y2"),
    ]
    layout = _layout("samples/s", unit_2="tokens/s", yaxis={"rangemode": "tozero"})
    return Chart(
        "throughput", "Throughput", "Samples the trainer used a second, and tokens the engine made a second.", go.Figure(traces, layout)
    )


def _gap() -> Chart:
    traces = [
        _line("loss/mismatch_mean_abs", "chart-1", name="mean |trainer − engine|"),
        _line("loss/kl_mismatch", "chart-5", name="k3"),
    ]
    return Chart(
        "gap",
        "Engine and trainer disagree by",
        "Log-probabilities of the same tokens, engine against trainer. A growing gap means staleness or a faulty sync.",
        go.Figure(traces, _layout("nats", yaxis={"rangemode": "tozero"})),
    )


def _single(key: str, series: str, title: str, color: str) -> Chart:
    metric = CATALOGUE[series]
    figure = go.Figure([_line(series, color)], _layout(metric.unit, legend=False, yaxis={"rangemode": "tozero"}))
    return Chart(key, title, metric.description, figure)


def _step_time() -> Chart:
    rows = (("time/train_s", "train", "cause-train"), ("time/wait_s", "waited for a batch", "cause-wait"))
    traces: list[Any] = [
        go.Bar(
            x=[],
            y=[],
            name=name,
            marker={"line": {"width": 0}},
            hovertemplate="%{y:.3g} s",
            meta={"series": series, "scale": 1.0, "color": color},
        )
        for series, name, color in rows
    ]
    traces.append(_line("time/step_s", "chart-6", name="whole step", width=1.2))
    return Chart(
        "step-time",
        "Time of a step",
        "Wall time from one trained batch to the next.",
        go.Figure(traces, _layout("s", barmode="stack", bargap=0.1)),
    )


def _length() -> Chart:
    traces = [
        _line("reward/completion_tokens", "chart-4", name="mean tokens"),
        _line("reward/truncated_share", "chart-5", name="cut, % (right)", scale=100, axis="y2"),
    ]
    layout = _layout("tokens", unit_2="%", yaxis={"rangemode": "tozero"})
    return Chart("length", "Completion length", "Mean tokens of a completion, and the share cut at the limit.", go.Figure(traces, layout))


CHARTS: tuple[Callable[[], Chart], ...] = (
    _reward,
    _buffer,
    _lag,
    _sync,
    _sync_phases,
    _throughput,
    _step_time,
    _gap,
    lambda: _single("grad-norm", "loss/grad_norm", "Gradient norm", "chart-3"),
    lambda: _single("entropy", "loss/entropy", "Entropy", "chart-2"),
    _length,
)


@lru_cache(maxsize=1)
def charts() -> tuple[Chart, ...]:
    """Every chart of the run page, in order. plotly.graph_objects has checked each attribute."""
    return tuple(make() for make in CHARTS)


def series_names(selected: Iterable[Chart] | None = None) -> list[str]:
    """The series the charts need, and those that map their horizontal axis: what the page asks series.json for."""
    names = {name for chart in (selected if selected is not None else charts()) for name in chart.series}
    return sorted(names | {"samples/trained", "samples/tokens"})
