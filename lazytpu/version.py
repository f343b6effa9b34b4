"""The version of the package."""

VERSION = "0.1.0"  # the only place: pyproject.toml reads it here
