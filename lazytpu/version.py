"""The version of the package."""

VERSION = "0.1.0"  # as in pyproject.toml
