"""A second device in software: executes PTX on NumPy."""
