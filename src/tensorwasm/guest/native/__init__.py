"""Host functions compiled by Numba: they run without Python and without its lock, and hand what is rare to Python."""
