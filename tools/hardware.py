"""What a design on paper cannot promise and silicon has to show."""

from __future__ import annotations

from typing import Final

from claims import Claim, Table

HARDWARE: Final = Table(
    mark="hardware",
    title="Seen on hardware",
    text=(
        "What paper cannot promise: each claim is shown by tests that run on a GPU (`make gpu`; the report is in "
        "`bench/results/`). Those under `tests/conformance/` run on the emulator too, at every change. *H* is work "
        "that needed hardware to be proved, *BUG* a mistake that hardware found in an earlier implementation."
    ),
    claims=(
        Claim("H1", "Managed memory is allocated, advised, prefetched, written by a kernel and read back."),
        Claim("H2-allocate", "A buffer is allocated and dropped, and nothing of it is left."),
        Claim("H2-context", "All threads of a process share one context of a device, made once."),
        Claim(
            "H2-window", "Only the visible window of a buffer is there, zeroed; what grows is zeroed before it is seen."
        ),
        Claim("H2-cap", "A tenant's pool grants what is under its cap and the driver itself refuses what is over it."),
        Claim("H3-round-trip", "Managed memory written by the host is read by a kernel, and the other way round."),
        Claim("H3-advice", "Read-mostly, preferred location and accessed-by are taken, and so is their undoing."),
        Claim("H3-prefetch", "Prefetching to the device and back keeps every byte."),
        Claim("H4", "A stream wakes who waits for it by a callback: once, after its work, without polling."),
        Claim("H5", "A device buffer round trip: allocate, copy in, launch, copy out, the very bytes."),
        Claim("H6", "Memory grows in place: the pointer stays, the data stays, what is not mapped faults."),
        Claim("H7", "Matrix products on tensor cores (wmma, mma) give the reference's results."),
        Claim("H8", "One backend drives the device, through every call that it makes, also when the call fails."),
        Claim(
            "BUG-1", "A cap on device memory is a cap: the driver refuses beyond it even when our books are bypassed."
        ),
        Claim("BUG-2", "The GPU path builds and runs: the same suite, unchanged, on emulator and GPU."),
        Claim("BUG-4", "No test holds the absence of a device for right: on a GPU the device path answers."),
        Claim("BUG-6", "Launches work from any thread: each call binds the context it needs."),
        Claim(
            "BUG-7-ascii", "PTX with a byte outside ASCII is refused with a place, and the committed kernels have none."
        ),
        Claim("BUG-7-isa", "PTX newer than the driver, or for a newer GPU, is passed over for a variant that fits."),
        Claim(
            "BUG-8-memory",
            "A kernel works on the guest's linear memory, launched by the guest, and the result is right.",
        ),
        Claim("BUG-8-context", "A kernel is launched in the context that loaded it, a green one too."),
        Claim("BUG-9", "Managed memory is allocated from threads that never touched the device before."),
        Claim("BUG-10", "Prefetch and advice are no-ops that say so where the device cannot use them."),
        Claim("BUG-release", "Another library's retain and release of the primary context leaves ours working."),
        Claim(
            "BUG-pointer", "A pointer that is not the guest's is refused before the driver sees it; neighbours go on."
        ),
        Claim("BUG-flake", "The whole file runs twelve times in one process without a flake."),
    ),
)
