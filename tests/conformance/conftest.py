"""Registers the device if `import torch` alone does not, because the package is not installed."""

import lazytpu  # noqa: F401
