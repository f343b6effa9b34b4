"""Launches of compiled programs: runs in whole, in clusters or op by op, and the runs still in flight."""
