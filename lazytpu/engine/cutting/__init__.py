"""Running a cut: the choice of a strategy, its launch, and deferred launches in a job of several processes."""
