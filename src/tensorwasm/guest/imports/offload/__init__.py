"""Guards of regions that are offloaded, and the places where these run instead."""

from typing import Final

SERVICE: Final = "offload"
"""Name under which the caller attaches an `OffloadService` to an instance."""
