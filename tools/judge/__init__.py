"""The gains of the passes, by the TPU's own compiler, for steps of models: `python -m tools.judge`, docs/passes.md."""
