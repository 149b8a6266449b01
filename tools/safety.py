"""The safety rules of docs/design.md, by their numbers, in the parts that tests show one by one."""

from __future__ import annotations

from typing import Final

from claims import Claim, Table

SAFETY: Final = Table(
    mark="rule",
    title="Safety rules and their tests",
    text=(
        "The rules of [the design](../design.md#safety-rules), under the same numbers, part by part, each with tests "
        "that fail when it is broken. Those under `tests/conformance/` run on the emulator and on a GPU."
    ),
    claims=(
        Claim("1-preset", "A compiled host function answers a failure until all is done; success is written last."),
        Claim("1-raise", "Nothing that is compiled can raise, which would be taken for success."),
        Claim("1-integers", "Compiled code computes in 64-bit integers; no number goes through a float."),
        Claim(
            "1-twin",
            "Whatever a guest asks, compiled code does what Python would do or leaves it to Python, around 2^31, 2^32, "
            "2^53 and 2^63 too.",
        ),
        Claim("1-addresses", "The code holds no address; the driver's functions are called through a table."),
        Claim("1-regions", "Every region is checked against the memory's size at that moment, without wrapping."),
        Claim("2-argv", "Argument records are copied once, and only the copy is checked and used."),
        Claim("2-text", "PTX and names are copied before they are read, or compared while nothing can write to them."),
        Claim("2-chunk", "What a guest sends is a copy."),
        Claim("3-memory", "Linear memory that the device may still reach is not used again, however its guest ends."),
        Claim("3-registration", "Pages are unregistered before they go, once all work that reaches them has ended."),
        Claim("3-buffer", "A device buffer is released once all work has ended."),
        Claim("3-kernel", "So are a kernel and a graph."),
        Claim("3-stream", "A stream serves another once it has drained, and never again after a failure."),
        Claim("3-staging", "A staging slot serves another once its work has ended, and never if nobody knows."),
        Claim("3-pad", "A launch pad serves another once nothing can reach it: no session, no notification."),
        Claim("3-shared", "Memory that host and device share is not released under a stream that may reach it."),
        Claim("3-worker", "When a worker is gone, so is what its requests were charged for."),
        Claim("3-pinned", "Pinned memory is on the tenant's quota, and a refusal changes nothing."),
        Claim("4-memory", "Linear memory, tables and globals start as the module says, zero elsewhere, in every kind."),
        Claim("4-device", "A device buffer is zero for every stream before any of its guest's work."),
        Claim("4-staging", "What a guest left in a staging slot is cleared, and all of it for another tenant."),
        Claim("4-shared-memory", "On the emulator a kernel reads no shared memory that its block has not written."),
        Claim(
            "4-local-memory", "Local memory is zero until its thread, and this call of the function, has written it."
        ),
        Claim("4-registers", "On the emulator registers that nothing wrote are zero."),
        Claim("4-variables", "Variables of a module are one guest's: such a module is loaded anew for each."),
        Claim("4-session", "A session or pad that serves one guest after the other shows nothing of the one before."),
        Claim("4-warm", "A sandbox made in advance serves one guest, with nothing of another caller or of its making."),
        Claim("4-process", "On a GPU, unless the operator says otherwise, tenants share no process."),
        Claim("5-owned", "A pointer argument lies in what the session registered or allocated, to its last byte."),
        Claim("5-aligned", "It is aligned for the widest access that the kernel makes through it."),
        Claim("5-first", "What the check refuses, the device never hears of, and a guest is answered -5."),
        Claim("5-compiled", "Compiled launches and copies pass only what the same checks pass."),
        Claim("5-recorded", "So do launches that are recorded, and a graph dies with what it reaches."),
        Claim("5-copies", "A copy stays within its buffer and within the guest's memory."),
        Claim("6-uploaded", "Precompiled code that somebody uploads is refused."),
        Claim("6-key", "Only code whose signature under this machine's own key checks out is loaded, byte for byte."),
        Claim("6-child", "Modules are compiled in a process of its own, with limits, that leaves nothing behind."),
        Claim("7-module", "A saved instance goes on in its own module, or is refused before anything of it is there."),
        Claim("7-grants", "It may use what it was granted and its caller grants, and nothing else."),
        Claim("7-charged", "What it holds on the device is charged anew, and a refusal leaves nothing."),
        Claim("7-handles", "Every handle means the same again, and none is given twice."),
        Claim("7-tenant", "The tenant is its caller's: what was kept for one serves no other."),
        Claim("8-kernels", "A loaded kernel serves only the tenant who brought its text."),
        Claim("8-modules", "A compiled module serves only the tenant who brought it."),
        Claim("8-sessions", "A session that is kept for the next guest is kept for the same tenant."),
        Claim("8-artifacts", "A tenant cannot tell whether another keeps an artifact, and cannot get it by its hash."),
        Claim("10-compiler", "In a worker that tenants share the driver compiles nothing; ptxas does, in a child."),
        Claim("11-length", "A frame that is too long is refused before its body is there."),
        Claim("11-types", "A frame has exactly its fields, of exactly their types; nothing else is read from it."),
        Claim("11-claims", "What a worker says of a call is checked: results, errors and texts."),
        Claim("11-socket", "Parent and worker talk over a pair without a name, and a worker checks who started it."),
        Claim("11-secrets", "A worker gets a list of variables and one descriptor: no key, and no way to a database."),
        Claim("11-spawn", "Processes are spawned, never forked."),
        Claim("11-cache", "Compiled code is kept in a folder of the user's own, mode 0700, that nobody else can move."),
        Claim("12-python", "No Python is on a fiber while its guest waits."),
        Claim("12-nested", "A host function runs no guest on a fiber, nor the one that called it."),
        Claim("13-deadline", "Whatever a kernel does on the emulator, it ends soon after its deadline."),
        Claim("13-lanes", "The emulator runs no more threads side by side than it may, whatever the grid."),
        Claim("13-memory", "It bounds the memory of a launch and of a module before it allocates any."),
        Claim("13-reading", "Reading, checking and loading PTX ends at the deadline too, and leaves nothing."),
        Claim("14-hashed", "Of a token only a digest is kept; no log, error or representation has anything of it."),
        Claim("14-ended", "A token that is revoked, rotated or past its end lets nobody in, here at once."),
        Claim("14-minted", "Nobody makes a token that may do more than he may."),
        Claim(
            "14-capability", "Administering takes a capability of the same registry, which nobody can make or widen."
        ),
        Claim("14-oidc", "A JWT chooses neither its algorithm nor where its key is; issuer and audience are pinned."),
        Claim("14-keys", "An issuer's keys come from a file or its own host, bounded in size, time and frequency."),
        Claim("14-exposure", "Without authentication nobody is served unless told; publicly only if told twice."),
        Claim("14-origin", "A page opens a WebSocket from an origin that the operator allows, or not at all."),
        Claim("15-grant", "Without the grant `wasi:cuda` answers -1 and nothing else happens."),
        Claim("16-messages", "No message shows a path of the host or an address of the process."),
    ),
)
