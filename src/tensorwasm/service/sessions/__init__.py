"""Sessions: instances that several calls share, in memory while they are used and in the artifact store else.

``errands`` has one thing done after the other, ``leases`` says which are this server's, ``keeping`` writes rows and
saves, ``room`` decides who is in memory, ``living`` knows the runtime, and ``sessions`` is what the edges use.
"""

from tensorwasm.service.sessions.entry import Session, SessionCall
from tensorwasm.service.sessions.sessions import Sessions

__all__ = ["Session", "SessionCall", "Sessions"]
