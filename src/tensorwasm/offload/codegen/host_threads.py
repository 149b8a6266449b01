"""How the host's threads share a kernel's iterations, and wait for each other between kernels, in LLVM's instructions.

All threads call one function. Its last parameter is a block of words in memory that they share.
"""

from __future__ import annotations

from typing import Final

WORDS_BYTES: Final = 512
"""Of the shared block."""
ARRIVED: Final = 0
"""Offset of a u64: how many threads wait."""
EPOCH: Final = 128
"""u64: grows by 2 each time that all have arrived; odd if they have to stop."""
STOP: Final = 256
"""u64: not 0 once somebody wants the threads to stop."""
NAN: Final = 384
"""u64: not 0 once a NaN was seen whose bits are unknown."""
YIELD: Final = 448
"""u64: address of a function without parameters that gives the processor to other threads."""

SPINS: Final = 4000
"""Looks at the epoch before a thread gives its processor away at each one."""

MEET: Final = f"""
define internal i1 @meet(i64 %threads, ptr %shared) noinline nounwind {{
entry:
  %epoch.at = getelementptr i8, ptr %shared, i64 {EPOCH}
  %epoch = load atomic i64, ptr %epoch.at monotonic, align 8
  %before = atomicrmw add ptr %shared, i64 1 acq_rel, align 8
  %mine = add i64 %before, 1
  %last = icmp eq i64 %mine, %threads
  br i1 %last, label %open, label %wait
open:
  %stop.at = getelementptr i8, ptr %shared, i64 {STOP}
  %stop = load atomic i64, ptr %stop.at monotonic, align 8
  %nan.at = getelementptr i8, ptr %shared, i64 {NAN}
  %nan = load atomic i64, ptr %nan.at monotonic, align 8
  %reasons = or i64 %stop, %nan
  %stopped = icmp ne i64 %reasons, 0
  %odd = zext i1 %stopped to i64
  %following = add i64 %epoch, 2
  %opened = or i64 %following, %odd
  store atomic i64 0, ptr %shared monotonic, align 8
  store atomic i64 %opened, ptr %epoch.at release, align 8
  ret i1 %stopped
wait:
  %spins = phi i64 [ 0, %entry ], [ %more, %again ]
  %seen = load atomic i64, ptr %epoch.at acquire, align 8
  %same = icmp eq i64 %seen, %epoch
  br i1 %same, label %idle, label %done
idle:
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %spins, {SPINS}
  br i1 %long, label %give, label %again
give:
  %yield.at = getelementptr i8, ptr %shared, i64 {YIELD}
  %yield = load ptr, ptr %yield.at, align 8
  call void %yield()
  br label %again
again:
  br label %wait
done:
  %bit = trunc i64 %seen to i1
  ret i1 %bit
}}
"""
"""Waits until all threads have called it; returns whether they have to stop, the same to all."""
