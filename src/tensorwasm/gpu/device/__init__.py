"""The device port: its protocols, and the values that cross it.

A device is raw: it allocates, copies, loads and launches, and trusts its caller, who owns what it is given and gives it
back once no stream can reach it. Ownership, quotas, bounds and the pointer check of safety rule 5 are in
`tensorwasm.gpu.session`, above every device.

These hold for every method of `Device` and of the protocols that it is made of:

- Any thread may call it; a call that raises has created or changed nothing.
- `DeviceLost`: the device does not answer.
- `KernelFault`: a kernel faulted, and the device may be lost; from methods that give work, ask about it or wait for it.
- `InvokeTimeout`: the deadline passed and work is still running; from methods that wait. The stream must not be reused.
- `LaunchRefused` while the stream is recording, from methods that a recording does not admit.
"""
