"""The steps of instructions, one module a subject.

A function ``compile_...`` adds what an instruction does to the function being built. It raises `MalformedPtx` if the
operands do not fit, and `UnsupportedPtx` if the emulator lacks the form.
"""
