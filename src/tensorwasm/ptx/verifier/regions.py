"""What a branch decides about: the blocks between it and where its ways meet again.

Source: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorwasm.watch import Watch


def endless(ways: Sequence[Collection[int]], watch: Watch) -> set[int]:
    """Return the blocks from which no way ends: those of a loop with a wait, if nothing waits behind it."""
    end = len(ways)
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for number, following in enumerate(ways):
        for each in following:
            before[each].append(number)
    waiting = [end, *(number for number, following in enumerate(ways) if not following)]
    ending = set(waiting)
    while waiting:
        watch.step()
        new = [each for each in before[waiting.pop()] if each not in ending]
        ending.update(new)
        waiting += new
    return set(range(end)) - ending


class Regions:
    """The regions of a graph of basic blocks.

    Args:
        ways: the blocks that may follow each block; none, or their number, where the function ends.
        watch: of the deadline.
    """

    def __init__(self, ways: Sequence[Collection[int]], watch: Watch) -> None:
        self._watch = watch
        self._exit = len(ways)
        self._ways = [list(each) or [self._exit] for each in ways]
        self._after = self._post_dominators()

    def region(self, number: int) -> set[int]:
        """Return the blocks that a branch decides about."""
        end = self._after[number]
        seen: set[int] = set()
        waiting = [each for each in self._ways[number] if each != end]
        while waiting:
            self._watch.step()
            found = waiting.pop()
            if found not in seen and found != self._exit:
                seen.add(found)
                waiting += [each for each in self._ways[found] if each != end]
        return seen

    def _post_dominators(self) -> list[int]:
        """Return the block where all ways from each block meet first (Cooper, Harvey and Kennedy, 2001)."""
        before: list[list[int]] = [[] for _ in range(self._exit + 1)]
        for number, ways in enumerate(self._ways):
            for each in ways:
                before[each].append(number)
        order, position = self._reverse_order(before)
        found = [-1] * (self._exit + 1)
        found[self._exit] = self._exit
        changed = True
        while changed:
            changed = False
            for number in order:
                self._watch.step()
                if number == self._exit:
                    continue
                made = -1
                for each in self._ways[number]:
                    if found[each] >= 0:
                        made = each if made < 0 else self._meet(made, each, found, position)
                if made >= 0 and found[number] != made:
                    found[number] = made
                    changed = True
        return [self._exit if each < 0 else each for each in found]

    def _reverse_order(self, before: list[list[int]]) -> tuple[list[int], list[int]]:
        """Return the blocks from the exit backward, each before those that only it leads to, and their positions."""
        seen, finished = {self._exit}, list[int]()
        stack = [(self._exit, iter(before[self._exit]))]
        while stack:
            self._watch.step()
            number, rest = stack[-1]
            following = next((each for each in rest if each not in seen), None)
            if following is None:
                finished.append(number)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(before[following])))
        order = finished[::-1]
        position = [len(before)] * len(before)
        for at, number in enumerate(order):
            position[number] = at
        return order, position

    @staticmethod
    def _meet(one: int, other: int, found: list[int], position: list[int]) -> int:
        while one != other:
            while position[one] > position[other]:
                one = found[one]
            while position[other] > position[one]:
                other = found[other]
        return one
