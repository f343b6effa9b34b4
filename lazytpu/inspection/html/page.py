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
    pipeline = costed.pipeline or about.target
    return rendered(
        "page",
        title=": ".join(filter(None, (about.script, ", ".join(about.models)))) or data["name"],
        versions=", ".join(f"{name} {version}" for name, version in about.versions.items()) or "versions unknown",
        lead=_lead(costed, pipeline),
        pipeline=_passes_for(pipeline),
        script=Markup("\n".join(_read(f"{name}.js") for name in SCRIPTS)),
        # No text can end the script element or begin a comment.
        embedded=Markup(json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")),
        data=data,
    )


def rendered(template: str, **values: Any) -> str:
    """Return the HTML of a template, with the style of all pages."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style = Markup(_read("page.css"))
    return environment.from_string(_read(f"{template}.html.jinja")).render(style=style, **values)


def _read(name: str) -> str:
    """Return the text of a template, style or script."""
    return files("lazytpu.inspection.html").joinpath(name).read_text(encoding="utf-8")


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
