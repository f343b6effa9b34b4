"""Run a script, and kill rank 1 in the optimizer's third step, unless torchrun has restarted the job."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from itertools import count
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

STEPS = count(1)


def after_step(*step: Any) -> None:
    if next(STEPS) == 3 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(after_step)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
