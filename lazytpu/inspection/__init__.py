"""Looking inside: what is printed (`debug.py`), dumped (`dumps.py`) and kept in memory (`graphs.py`) of every program,
and the command-line tools `lazytpu-opt` (`opt.py`) and `lazytpu-show` (`show.py`)."""
