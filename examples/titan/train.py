"""Start TorchTitan's trainer on the device, with Titan's own command line: torchrun examples/titan/train.py --help"""

from __future__ import annotations

import torch_2_13

torch_2_13.add()

from torchtitan.train import main  # noqa: E402  # pyright: ignore[reportMissingImports]

if __name__ == "__main__":
    main()
