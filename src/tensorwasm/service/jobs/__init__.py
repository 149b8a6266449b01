"""Jobs: invocations that are accepted now and run later, whatever happens to this process meanwhile.

A job that was accepted ends exactly once: completed, failed, cancelled, or dead after its last attempt. An attempt may
be cut short by a process that goes down, and is then made again: what a guest did to others may happen twice. A limit
that refuses one is no attempt: the job waits until there is room.

::

    submit -> pending -> running -> completed | failed | cancelled
                 ^          |
                 +-- retry -+-> dead
"""
