"""Which program a trace has, kept on disk: a process that finds its traces there loads no pass and no rule."""
