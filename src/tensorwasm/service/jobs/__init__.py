"""Jobs: invocations that are accepted now and run later, also after a restart of this process.

An accepted job ends exactly once: completed, failed, cancelled, or dead after its last attempt. An attempt that a
process's end cuts short is made again, so a guest's external effects may happen twice. A call that is refused for lack
of capacity is not an attempt: the job stays pending.

::

    submit -> pending -> running -> completed | failed | cancelled
                 ^          |
                 +-- retry -+-> dead
"""
