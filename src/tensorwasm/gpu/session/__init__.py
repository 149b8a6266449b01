"""What stands between one instance and a device: every safety check, once, for every device alike.

A session hands out buffers, kernels, streams, events and graphs, keeps the table of addresses its kernels may touch,
charges quotas, and lets nothing reach the device that the device would have to be trusted to refuse.

Errors, stated here for all of its methods:

- `InvalidHandle`: there is no buffer, stream, event or graph of that number; `InvalidKernel` for a kernel.
- `InvalidArgs`: a stream records, and the method is none of those that may be called meanwhile: `SessionKernels.submit`
  and copies on that stream, `SessionGraphs.end`, `SessionGraphs.pieces`, and those that only ask what has to end first.
- `DeviceLost`: the session is over, or the device does not answer.
- `KernelFault`, `InvokeTimeout`: from methods that give, wait for or ask about work: it broke a rule, or the deadline
  passed before it ended.

A refusal (`CallerError`, `LimitError`) has changed nothing. Any other error poisons the session, because what the
device holds may be wrong: all that is left is `Session.close`.

Compiled code may give work to a session's streams without asking, through a `SessionLayout` that both share. The
session keeps it up to date, and waits for that work as for its own.
"""

from tensorwasm.gpu.session.session import Session, SessionStatistics

__all__ = ["Session", "SessionStatistics"]
