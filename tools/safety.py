"""The safety rules of docs/safety-rules.md by number, in parts that tests show one by one."""

from __future__ import annotations

from typing import Final

from claims import Claim, Table

SAFETY: Final = Table(
    mark="rule",
    title="Safety rules and their tests",
    text=(
        "The [safety rules](../safety-rules.md), under the same numbers, part by part, each with tests "
        "that fail when it is broken. Those under `tests/conformance/` run on the emulator and on a GPU."
    ),
    claims=(
        Claim("1-preset", "A compiled host function returns a failure until all is done; success is written last."),
        Claim("1-raise", "Compiled code cannot raise; an exception would count as success."),
        Claim("1-integers", "Compiled code computes in 64-bit integers; no number goes through a float."),
        Claim(
            "1-twin",
            "Compiled code does what Python would do, or leaves the request to Python, also around 2^31, 2^32, 2^53 "
            "and 2^63.",
        ),
        Claim("1-addresses", "Compiled code contains no address; it calls the driver's functions through a table."),
        Claim("1-regions", "Every region is checked against the memory's current size, without wrapping."),
        Claim("2-argv", "Argument records are copied once, and only the copy is checked and used."),
        Claim("2-text", "PTX and names are copied before they are read, or compared while nothing can write to them."),
        Claim("2-chunk", "What a guest sends is copied."),
        Claim("3-memory", "Linear memory that the device may still reach is not used again, however its guest ends."),
        Claim("3-registration", "Pages are unregistered before they go, once all work that reaches them has ended."),
        Claim("3-buffer", "A device buffer is released once all work has ended."),
        Claim("3-kernel", "A kernel or a graph is released once all work has ended."),
        Claim("3-stream", "A stream serves another once it has drained, and never again after a failure."),
        Claim("3-staging", "A staging slot serves another once its work has ended, and never if that is unknown."),
        Claim(
            "3-layout",
            "A session layout serves another sandbox once no session and no notification can reach it.",
        ),
        Claim("3-shared", "Memory that host and device share is not released under a stream that may reach it."),
        Claim("3-worker", "When a worker ends, the charges of its requests end."),
        Claim("3-pinned", "Pinned memory counts against the tenant's quota, and a refusal changes nothing."),
        Claim(
            "4-memory",
            "Linear memory of every kind, tables and globals start as the module defines, and zero elsewhere.",
        ),
        Claim("4-device", "A device buffer is zero for every stream before any of its guest's work."),
        Claim(
            "4-staging",
            "A guest's data in a staging slot is cleared, and the whole slot before another tenant uses it.",
        ),
        Claim("4-shared-memory", "On the emulator a kernel reads no shared memory that its block has not written."),
        Claim(
            "4-local-memory", "Local memory is zero until its thread, and this call of the function, has written it."
        ),
        Claim("4-registers", "On the emulator unwritten registers are zero."),
        Claim("4-variables", "Variables of a module belong to one guest: such a module is loaded anew for each."),
        Claim("4-session", "A session or pad that serves one guest after the other shows no data of an earlier one."),
        Claim(
            "4-warm",
            "A sandbox made in advance serves one guest, and shows no data of another caller or of its preparation.",
        ),
        Claim("4-process", "On a GPU, unless the operator says otherwise, tenants share no process."),
        Claim(
            "5-owned", "A pointer argument lies, to its last byte, in memory that the session registered or allocated."
        ),
        Claim("5-aligned", "A pointer argument is aligned for the widest access that the kernel makes through it."),
        Claim("5-first", "A launch that the check refuses never reaches the device, and the guest gets -5."),
        Claim("5-compiled", "Compiled launches and copies pass the same checks."),
        Claim(
            "5-recorded", "Recorded launches pass the same checks, and a graph ends with the memory that it reaches."
        ),
        Claim("5-copies", "A copy stays within its buffer and within the guest's memory."),
        Claim("6-uploaded", "Uploaded precompiled code is refused."),
        Claim("6-key", "Only code with a valid signature by this machine's own key is loaded, byte for byte."),
        Claim("6-child", "Modules are compiled in a separate process with limits, which leaves nothing behind."),
        Claim("7-module", "A saved instance is restored in its own module, or refused before any of it exists."),
        Claim("7-grants", "A restored instance may use only what it was granted and its caller grants."),
        Claim(
            "7-charged", "What a restored instance holds on the device is charged again, and a refusal leaves nothing."
        ),
        Claim("7-handles", "After a restore every handle has the same meaning, and none is assigned twice."),
        Claim("7-tenant", "The tenant is the caller's: a snapshot kept for one tenant serves no other."),
        Claim("8-kernels", "A loaded kernel serves only the tenant that supplied its text."),
        Claim("8-modules", "A compiled module serves only the tenant that supplied it."),
        Claim("8-sessions", "A session that is kept for another guest serves the same tenant."),
        Claim(
            "8-artifacts", "A tenant cannot find out whether another stores an artifact, and cannot get it by its hash."
        ),
        Claim(
            "10-compiler", "In a worker that tenants share the driver compiles nothing; ptxas does in a child process."
        ),
        Claim("11-length", "A frame that is too long is refused before its body is read."),
        Claim("11-types", "A frame has exactly its fields, of exactly their types; nothing else is read from it."),
        Claim("11-claims", "A worker's messages about a call are checked: results, errors and texts."),
        Claim(
            "11-socket",
            "Parent and worker communicate over an unnamed socket pair, and a worker checks who started it.",
        ),
        Claim(
            "11-secrets", "A worker gets a list of variables and one descriptor: no key, and no access to a database."
        ),
        Claim(
            "11-spawn",
            "Processes are spawned; the server's own, and workers, are forked from templates without threads.",
        ),
        Claim("11-cache", "Compiled code is kept in the user's own folder, mode 0700, which no other user can move."),
        Claim("12-python", "No Python frame is on a fiber while its guest waits."),
        Claim("12-nested", "A host function cannot run a guest on a fiber, nor the guest that called it."),
        Claim("13-deadline", "Every kernel on the emulator ends soon after its deadline."),
        Claim("13-lanes", "The emulator limits the threads that run side by side, whatever the grid."),
        Claim("13-memory", "The emulator bounds the memory of a launch and of a module before it allocates any."),
        Claim("13-reading", "Reading, checking and loading PTX ends at the deadline, too, and leaves nothing behind."),
        Claim("14-hashed", "Only a digest of a token is stored; no log, error or representation has any part of it."),
        Claim("14-ended", "A revoked, rotated or expired token is refused, in this process at once."),
        Claim("14-minted", "A token cannot create a token with more rights than its own."),
        Claim(
            "14-capability", "Administration takes a capability of the same registry, which cannot be made or widened."
        ),
        Claim("14-oidc", "A JWT chooses neither its algorithm nor where its key is; issuer and audience are pinned."),
        Claim(
            "14-keys", "An issuer's keys come from a file or from its own host, bounded in size, time and frequency."
        ),
        Claim(
            "14-exposure",
            "Without authentication no one is served unless a setting allows it; publicly only if two do.",
        ),
        Claim("14-origin", "A page opens a WebSocket only from an origin that the operator allows."),
        Claim("15-grant", "Without the grant `wasi:cuda` returns -1 and does nothing else."),
        Claim("16-messages", "No message shows a path of the host or an address of the process."),
    ),
)
