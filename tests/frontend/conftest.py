"""Registration of the device, also where the package is not installed, and so `import torch` alone does not register
it."""

import lazytpu  # noqa: F401
