"""Claims that only tests on a GPU can show."""

from __future__ import annotations

from typing import Final

from claims import Claim, Table

HARDWARE: Final = Table(
    mark="hardware",
    title="Seen on hardware",
    text=(
        "Each claim is shown by tests that run on a GPU (`make gpu`; the report is in `bench/results/`). Those under "
        "`tests/conformance/` run on the emulator too, at every change. *H* marks a property that only hardware can "
        "prove, *BUG* a mistake that hardware found in an earlier implementation."
    ),
    claims=(
        Claim("H1", "Managed memory is allocated, advised, prefetched, written by a kernel and read back."),
        Claim("H2-allocate", "A buffer is allocated and dropped, and leaves nothing behind."),
        Claim("H2-context", "All threads of a process share one context of a device, made once."),
        Claim(
            "H2-window",
            "Only the visible window of a buffer is mapped, and zeroed; growth is zeroed before it is visible.",
        ),
        Claim(
            "H2-cap", "A tenant's pool grants requests under its cap, and the driver itself refuses requests over it."
        ),
        Claim("H3-round-trip", "A kernel reads managed memory that the host wrote, and the reverse."),
        Claim(
            "H3-advice",
            "The driver accepts the advice read-mostly, preferred location and accessed-by, and its removal.",
        ),
        Claim("H3-prefetch", "Prefetching to the device and back keeps every byte."),
        Claim("H4", "A stream wakes its waiter by a callback: once, after its work, without polling."),
        Claim("H5", "A device buffer round trip gives the exact bytes: allocate, copy in, launch, copy out."),
        Claim("H6", "Memory grows in place: pointer and data stay, and access to unmapped memory faults."),
        Claim("H7", "Matrix products on tensor cores (wmma, mma) equal the reference's results."),
        Claim("H8", "One backend makes all calls of the driver, and handles the failure of each."),
        Claim("BUG-1", "The driver enforces a cap on device memory even when our accounts are bypassed."),
        Claim("BUG-2", "The GPU path builds and runs: the same suite, unchanged, on emulator and GPU."),
        Claim("BUG-4", "No test passes because a device is absent: on a GPU the device path runs."),
        Claim("BUG-6", "Launches work from any thread: each call binds the context it needs."),
        Claim(
            "BUG-7-ascii",
            "PTX with a byte outside ASCII is refused with its position, and the committed kernels have none.",
        ),
        Claim(
            "BUG-7-isa", "PTX newer than the driver, or for a newer GPU, is skipped in favour of a variant that fits."
        ),
        Claim(
            "BUG-8-memory",
            "A kernel that the guest launches on its linear memory gives the right result.",
        ),
        Claim("BUG-8-context", "A kernel is launched in the context that loaded it, a green one too."),
        Claim("BUG-9", "Managed memory is allocated from threads that never touched the device before."),
        Claim("BUG-10", "Prefetch and advice are no-ops that report this where the device cannot use them."),
        Claim("BUG-release", "Another library's retain and release of the primary context leaves ours working."),
        Claim(
            "BUG-pointer",
            "A pointer that is not the guest's is refused before the driver receives it; other guests go on.",
        ),
        Claim("BUG-flake", "The whole file runs twelve times in one process without a flake."),
    ),
)
