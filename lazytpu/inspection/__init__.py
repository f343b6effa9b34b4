"""Inspection of programs: debug output (`debug.py`), dumps (`dumps.py`), programs kept in memory (`graphs.py`), and the
command-line tools `lazytpu-opt` (`opt.py`) and `lazytpu-show` (`show.py`)."""
