"""Host functions compiled by Numba: they run without Python and without the GIL, and leave rare cases to Python."""
