"""The page: data, template, style and scripts in one file."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lazytpu.inspection.about import About
from lazytpu.inspection.html.data import page_data
from lazytpu.inspection.step.costs import CostedStep
from lazytpu.passes.generations import GENERATIONS
from lazytpu.passes.target import NAMES

SCRIPTS = ("common", "search", "overview", "roofline", "timeline", "graph", "passes", "ops")

UNKNOWN = About("", (), "", {})


def page(costed: CostedStep, *, why: str | None = None, about: About = UNKNOWN) -> str:
    """Return the HTML of a step. It refers to no other file or server, and runs only its own scripts.

    `why` is the reason for compiling the program, and `about` its origin.
    """
    data = page_data(costed, why=why, folders=about.folders)
    changes, pipeline = costed.changes, costed.pipeline or about.target
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    sections = [("overview", "overview"), ("lines", "lines"), ("time", "timeline"), ("graph", "graph"), ("ops", "ops")]
    if data["modules"]:
        sections.insert(2, ("modules", "modules"))
    if changes:
        sections.insert(-1, ("passes", "passes"))
    return environment.from_string(read_part("page.html.jinja")).render(
        title=_title(about) or data["name"],
        name=data["name"],
        versions=", ".join(f"{name} {version}" for name, version in about.versions.items()) or "versions unknown",
        sections=sections,
        lead=_lead(costed, pipeline),
        timeline_note=_timeline_note(data["summary"]),
        graph_note=_graph_note(data["graph"]["by"]),
        why=why,
        passes=len(changes),
        modules=len(data["modules"]),
        roofline=len(data["roofline"]["dots"]),
        pipeline=_passes_for(pipeline),
        style=Markup(read_part("page.css")),
        script=Markup("\n".join(read_part(f"{name}.js") for name in SCRIPTS)),
        data=Markup(_embedded(data)),
    )


def read_part(name: str) -> str:
    """Return the text of a template, style or script."""
    return files("lazytpu.inspection.html").joinpath(name).read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """Return JSON for a script element, in which no text can end the element or begin a comment."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _title(about: About) -> str:
    return ": ".join(part for part in (about.script, ", ".join(about.models)) if part)


def _passes_for(pipeline: str) -> str:
    """Describe a pipeline in words."""
    if not pipeline:
        return "an unknown pipeline"
    return f"the pipeline for {pipeline}" if pipeline in NAMES else f"the pipeline {pipeline}"


def _lead(costed: CostedStep, pipeline: str) -> str:
    step = costed.step
    products = sum(op.passes > 0 for op in step.ops)
    backward = sum(op.backward for op in step.ops)
    counts = f"{len(step.ops):,} ops, {products:,} of them matrix products or convolutions"
    counts += f", {backward:,} recorded by the backward pass" if backward else ""
    shown = f"{_passes_for(pipeline)} left it"
    if pipeline not in ("tpu", *GENERATIONS):
        shown += ", not as a TPU's would"
    clusters = len(step.clusters)
    called = f" It calls {clusters:,} clusters." if clusters else ""
    return (
        f"One program with {counts}, as {shown}.{called} Times and memory are estimates of a TPU {costed.generation} "
        f"by {costed.source}."
    )


def _timeline_note(summary: dict[str, Any]) -> str:
    return (
        "Each box is a kernel, ops that run as one; below is the memory that is in use beside the arguments. With "
        f"these it takes {summary['peak'] / 1e6:,.1f} MB."
    )


def _graph_note(by: str) -> str:
    shown = "Source lines in the order in which they first run, with their time."
    if by == "cluster":
        shown = "Calls of clusters in order, with their time; those of one name are compiled once."
    return f"{shown} An arc leads from producers to consumers, a dashed one upwards."
