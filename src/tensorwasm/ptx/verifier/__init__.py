"""The verifier: decides whether a PTX text may run beside kernels of other tenants.

It reads the text that ptxas is given and accepts it only if every instruction is in a closed list and every access is
through a register that only fences write, or at a place that is known. It shares nothing with the guard but the parser,
the model and the description of the form (`tensorwasm.ptx.guarded`). This package and those are what isolation between
tenants rests on, besides ptxas and the driver.
"""

from tensorwasm.ptx.verifier.verify import Verified, verify

__all__ = ["Verified", "verify"]
