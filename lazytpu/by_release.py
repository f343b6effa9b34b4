"""Differences between torch's releases in results and refusals of its CPU kernels; the rules follow the installed
release."""

from __future__ import annotations

import torch

from lazytpu.versions import release

VERSION = release(torch.__version__)

ROUNDS_SOFTSHRINK = VERSION >= (2, 14)
"softshrink of half types rounds lambd to their dtype; before, it reads lambd as float32."
SATURATES_CLAMP = VERSION >= (2, 15)
"clamp takes an integer bound beyond an integer dtype as that dtype's end; before, the bound wraps, or is refused."
APPLIES_MASK_AND_CAUSAL = VERSION < (2, 14)
"The fused attention kernel applies a mask and `is_causal` together; later releases refuse them."
INTEGER_SOLVE_ERROR = NotImplementedError if VERSION >= (2, 15) else RuntimeError
"""The error for a solve of integers."""
