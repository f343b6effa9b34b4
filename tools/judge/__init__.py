"""What the passes gain, by the TPU's own compiler, for steps of models: `python -m tools.judge`, docs/passes.md."""
