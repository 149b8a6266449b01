"""What stands between one instance and a device: every safety check, once, for every device alike.

A session hands out buffers, kernels, streams, events and graphs, keeps the table of addresses its kernels may touch,
charges quotas, and lets nothing reach the device that the device would have to be trusted to refuse. After a fault, a
timeout or a lost device it is poisoned: whatever the device holds may be wrong, so all that is left to do is
`Session.close`.

A session may have a launch pad, through which compiled code gives work to its streams without asking. The session keeps
the pad true, and waits for that work as for its own.
"""

from tensorwasm.gpu.session.session import Session
from tensorwasm.gpu.session.statistics import SessionStatistics

__all__ = ["Session", "SessionStatistics"]
