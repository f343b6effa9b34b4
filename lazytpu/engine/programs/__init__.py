"""Facts about a program in addition to its executable, and the settings it depends on."""
