"""The optimizers of random trainings, each with the arguments to choose from: numbers, or tuples of choices."""

from __future__ import annotations

from typing import Any

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.02, "momentum": (0.0, 0.9), "nesterov": (False, True), "weight_decay": (0.0, 0.01)},
    "Adam": {"lr": 0.003, "amsgrad": (False, True)},
    "AdamW": {"lr": 0.003, "amsgrad": (False, True)},
    "NAdam": {"lr": 0.003, "decoupled_weight_decay": (False, True)},
    "RAdam": {"lr": 0.003},
    "Adamax": {"lr": 0.003},
    "Adagrad": {"lr": 0.01, "lr_decay": (0.0, 0.01)},
    "Adadelta": {"lr": 0.5},
    "ASGD": {"lr": 0.01, "t0": (1e6, 3)},
    "Rprop": {"lr": 0.001},
    "RMSprop": {"lr": 0.002, "centered": (False, True), "momentum": (0.0, 0.9)},
    "Adafactor": {"lr": 0.01},
    "LBFGS": {"lr": 0.1, "max_iter": (2, 4)},  # its line search divides by zero on the CPU, too
}
FUSED, CAPTURABLE = ("SGD", "Adam", "AdamW", "Adagrad"), ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Rprop", "ASGD")
PLAIN = ("Adafactor", "LBFGS")
"Optimizers without the arguments foreach and maximize."
