"""An emulated GPU: executes PTX with NumPy on the host's processor."""
