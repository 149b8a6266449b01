"""NVIDIA GPUs through the driver API.

`opening` finds a GPU and makes the `device`, whose parts share a `core`: `memory`, `streams`, `modules` and `native`.
`driver` is the API itself; `dues` and `delays` decide when work that runs too long loses the GPU.
"""
