"""The index of traces and their programs on disk. A process that finds its traces there loads no pass and no rule."""
