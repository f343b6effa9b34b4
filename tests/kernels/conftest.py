"""Registers the device, also if the package is not installed, so that `import torch` alone does not."""

import lazytpu  # noqa: F401
