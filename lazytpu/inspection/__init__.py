"""Looking inside: what is printed (`debug.py`), written (`dumps.py`) and kept (`graphs.py`) of every program, and the
command-line tools `lazytpu-opt` (`opt.py`) and `lazytpu-show` (`show.py`)."""
