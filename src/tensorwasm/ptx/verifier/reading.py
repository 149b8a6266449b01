"""Divides a guarded function into its parts: declarations, prologue, the program's statements with charges, epilogue.

Source: PTX ISA 4.4, 5.4, 9.7.12, 11.2.
"""

from __future__ import annotations

from typing import Final

from tensorwasm.ptx import guarded as rules
from tensorwasm.ptx import templates
from tensorwasm.ptx.layout import TYPE_BYTES, variable_bytes
from tensorwasm.ptx.model import Function, Guard, Instruction, Int, Label, Name, Statement, TargetList, Variable
from tensorwasm.ptx.symbols import split_call
from tensorwasm.ptx.templates import polls
from tensorwasm.ptx.templates.polls import Poll
from tensorwasm.ptx.verifier.costs import ends_run
from tensorwasm.ptx.verifier.kernel import KernelFacts, Payment, ReadFunction

_HEADER_DIRECTIVES: Final = frozenset({"maxntid", "reqntid", "minnctapersm", "maxnreg"})
_FUELS: Final = (rules.FUEL_USED, rules.FUEL_COMMON)
_BITS: Final = {prefix: bits for bits, prefix in rules.PROGRAM_FAMILIES.items()}


def read_function(function: Function, kernel: KernelFacts) -> ReadFunction:
    """Return the parts of a function; refuse it if it has others."""
    reader = _FunctionReader(function, kernel)
    reader.header()
    reader.statements(reader.declarations())
    return reader.made


def prologue(read: ReadFunction, kernel: KernelFacts, *, polled: bool) -> list[Statement]:
    """Return the prologue that a function has to have."""
    entry = read.function.entry
    return templates.prologue(
        read.registers,
        read.counts,
        read.function.returns,
        entry=entry,
        polled=polled,
        arrays=kernel.arrays,
        shared_base=kernel.shared_base,
        width=kernel.width,
    )


def is_program_register(register: Name) -> bool:
    """Return whether a name is one of the program's registers."""
    name = register.name
    return register.component is None and name[:2] in _BITS and name[2:].isdecimal()


class _FunctionReader:
    def __init__(self, function: Function, kernel: KernelFacts) -> None:
        self.made = ReadFunction(function)
        self._kernel = kernel
        self._body = list(function.body or ())
        self._present = False
        self._templates = (self._charge, self._payment, self._counted, self._call, self._agreement, self._check)
        self._registers = rules.REGISTERS[kernel.width]
        self._launch = rules.LAUNCH_PARAMS[kernel.width]
        self.made.reserved.update(each.name for each in self._registers)
        self.made.readable.update((rules.HIGH.name, rules.DATA.name))
        if kernel.arrays.local_bytes:
            self.made.readable.add(rules.FRAME.name)

    # ---------------------------------------------------------------------------------------- declarations

    def header(self) -> None:
        """Read the name, the parameters and the directives."""
        made, function = self.made, self.made.function
        self._require_own(function.name, function)
        if function.body is None or function.linkage not in ((), ("visible",)):
            made.refuse("a declaration", function)
        if function.params[-1:] != (self._launch,):
            made.refuse("the last parameter is not the launch's", function)
        for directive in function.directives:
            if directive.name not in _HEADER_DIRECTIVES:
                made.refuse(f".{directive.name}", directive)
        for param in (*function.params[:-1], *function.returns):
            self._require_own(param.name, param)
            if param.space != "param" or param.type not in TYPE_BYTES or param.attributes or param.linkage:
                made.refuse(f"the parameter {param.name}", param)
            if not function.entry:
                self._require_small(param)
            made.params[param.name] = param
        made.params[rules.LAUNCH] = self._launch

    def _require_own(self, name: str, at: Statement | Function) -> None:
        if name.startswith((*rules.RESERVED, "%")):
            self.made.refuse(f"the name {name}", at)

    def _require_small(self, param: Variable) -> None:
        if variable_bytes(param) > rules.MAX_PARAM_BYTES:
            self.made.refuse(f"the size of {param.name}", param)

    def declarations(self) -> int:
        """Read the declarations at the beginning of the body; return how many there are."""
        body, made, at = self._body, self.made, 0
        while at < len(body) and isinstance(variable := body[at], Variable) and variable.space in ("reg", "local"):
            at += 1
            if variable.space == "local" and not made.function.entry:
                made.refuse("local memory of a function", variable)
            if variable.space == "reg" and variable not in self._registers:
                self._family(variable)
        missing = [each.name for each in self._registers if each not in body[:at]]
        if missing:
            made.refuse(f"no register {missing[0]}", made.function)
        return at

    def _family(self, variable: Variable) -> None:
        made, name, count = self.made, variable.name, variable.count or 0
        kind = rules.FAMILIES.get(name)
        if name in rules.WIDE_FAMILIES and self._kernel.width != "wide":
            made.refuse(f"the register {name}", variable)
        if kind is None:
            bits = _BITS.get(name, 0)
            kind = "pred" if bits == 1 else f"b{bits}"
            made.registers[bits] = count
        else:
            members = [f"{name}{at}" for at in range(count)]
            made.counts[name] = count
            made.reserved.update(members)
            made.readable.update(members)
        if variable != Variable("reg", kind, name, count=count) or not count:
            made.refuse(f"the register {name}", variable)

    # ------------------------------------------------------------------------------------------ statements

    def statements(self, start: int) -> None:
        """Read what follows the declarations, up to the epilogue."""
        body, made = self._body, self.made
        at = start + self._prologue_length(start)
        for each in body[at:]:
            if isinstance(each, TargetList):
                if each.kind != "branchtargets":
                    made.refuse("lists of functions", each)
                made.lists[each.label] = each.targets
        while at < len(body):
            self._kernel.watch.step()
            statement = body[at]
            if isinstance(statement, Label) and statement.name.startswith(rules.RESERVED):
                if statement.name != polls.again_label(len(made.payments)):
                    break
                made.labels[statement.name] = len(made.body)
                made.body.append(statement)
                self._present = False
                at += 1
                continue
            taken = next(filter(None, (take(at) for take in self._templates)), 0)
            if taken:
                self._present = False
            else:
                taken = self._presence(at)
                self._present |= taken > 0
            if not taken:
                self._statement(statement)
                taken = 1
            at += taken
        made.end = at
        self._require_end()

    def _require_end(self) -> None:
        """Refuse a program that goes on into the epilogue: no analysis knows of that way."""
        last = self.made.body[-1] if self.made.body else None
        if not (isinstance(last, Instruction) and last.guard is None and ends_run(last)):
            self.made.refuse("the program goes on into the guard's code", self.made.function)

    def _prologue_length(self, start: int) -> int:
        """Return how many statements the prologue has; whether it is the right one of two is checked later."""
        for polled in (True, self.made.function.entry):  # the longer first: the other may be how it begins
            head = prologue(self.made, self._kernel, polled=polled)
            if self._body[start : start + len(head)] == head:
                return len(head)
        return self.made.refuse("the beginning is not that of a guarded function", self.made.function)

    def _statement(self, statement: Statement) -> None:
        made = self.made
        match statement:
            case Label(name):
                self._require_own(name, statement)
                made.labels[name] = len(made.body)
            case Variable(space="param", name=name):
                self._require_own(name, statement)
                self._require_small(statement)
                made.params[name] = statement
            case Instruction() if statement.opcode == "bra":
                self._branch(statement)
            case Instruction() | TargetList() | rules.NOT_UNROLLED:
                pass
            case _:
                made.refuse("a statement that is not available", statement)
        if ends_run(statement):
            self._present = False
        elif isinstance(statement, Instruction) and statement.opcode in rules.WHOLE_WARP_ONLY:
            agreed = made.agreed.get(len(made.body))
            if not self._present or (statement.guard is not None and statement.guard.predicate.name != agreed):
                made.refuse("not the whole warp may execute it", statement)
        made.body.append(statement)

    def _presence(self, at: int) -> int:
        """Take the check that the whole warp is there; return how many statements it is."""
        wanted = templates.presence()
        if self._body[at : at + len(wanted)] != wanted:
            return 0
        self.made.traps = True
        return len(wanted)

    def _branch(self, branch: Instruction) -> None:
        target = branch.operands[0]
        if branch.modifiers or not isinstance(target, Name):
            self.made.refuse("a branch", branch)
        if target.name == rules.TRAP:
            self.made.traps = True
        elif target.name.startswith(rules.RESERVED):
            self.made.refuse("a branch into the guard's code", branch)

    def _charge(self, at: int) -> int:
        """Take a charge, or a branch with one; return how many statements it is."""
        body, made = self._body, self.made
        first = body[at]
        fuel = first.operands[0] if isinstance(first, Instruction) and first.operands else None
        if not (isinstance(first, Instruction) and isinstance(fuel, Name) and fuel in _FUELS):
            return 0
        amount, number, here = first.operands[-1], len(made.polls), len(made.body)
        if not isinstance(amount, Int) or not 0 <= amount.value <= rules.FUEL:
            made.refuse("a charge", first)
        if body[at : at + 4] == polls.charge(amount.value, number, fuel):
            made.charges[here] = made.charges.get(here, 0) + amount.value
            made.polls.append(Poll(polls.back_label(number), fuel))
            return 4
        taken, poll = (*body[at + 2 : at + 4], first, first)[:2]
        if isinstance(taken, Instruction) and isinstance(poll, Instruction) and taken.operands:
            branch = Instruction("bra", (), taken.operands[:1], poll.guard, first.position)
            target, leaves = branch.operands[0], body[at + 4 : at + 5] == [Label(polls.left_label(number))]
            wanted = polls.charged_branch(branch, amount.value, number, fuel, leaves=leaves)
            if isinstance(target, Name) and body[at : at + len(wanted)] == wanted:
                self._require_own(target.name, branch)
                made.charges[here] = amount.value
                made.body.append(branch)
                made.polls.append(Poll(target.name, fuel, leaves))
                if leaves:
                    made.leaving.add(here)
                return len(wanted)
        return made.refuse("a charge", first)

    def _payment(self, at: int) -> int:
        """Take the payment for turns of a loop; return how many statements it is."""
        body, made = self._body, self.made
        first = body[at]
        counter = self._counter(first, "min")
        if counter is None or not isinstance(first, Instruction):
            return 0
        number, here = len(made.payments), len(made.body)
        match first.operands, body[at + 2 : at + 3]:
            case (_, Name() as left, Int(most)), [Instruction(operands=(Name() as fuel, _, Int(amount)))] if (
                fuel in _FUELS
            ):
                wanted = polls.pay_turns(counter, left, most, amount, fuel)
                if body[at : at + len(wanted)] == wanted and is_program_register(left):
                    whole = (most + 1) * amount
                    if not (amount > 0 and most > 0 and whole <= rules.FUEL):
                        made.refuse("more turns of a loop than the fuel is for", first)
                    made.trusted.add(here)
                    made.body.append(first)
                    made.payments[polls.again_label(number)] = Payment(here, counter.name, amount, whole, fuel)
                    return len(wanted)
        return made.refuse("how turns of a loop are paid for", first)

    def _counted(self, at: int) -> int:
        """Take the end of a loop whose turns are counted; return how many statements it is."""
        body, made = self._body, self.made
        first = body[at]
        counter = self._counter(first, "sub")
        if counter is None:
            return 0
        inner, again = (*body[at + 2 : at + 3], first)[0], (*body[at + 6 : at + 7], first)[0]
        if isinstance(inner, Instruction) and isinstance(again, Instruction) and inner.operands and again.operands:
            branch = Instruction("bra", (), inner.operands[:1], again.guard)
            target, label = branch.operands[0], again.operands[0]
            if isinstance(target, Name) and isinstance(label, Name) and label.name in made.payments:
                loop, number = int(label.name.removeprefix(rules.AGAIN)), len(made.polls)
                fuel = made.payments[label.name].fuel
                wanted = polls.counted_branch(branch, counter, loop, number, fuel)
                if body[at : at + len(wanted)] == wanted:
                    self._require_own(target.name, inner)
                    here = len(made.body)
                    made.trusted.update((here, here + 1))
                    made.counted[here] = counter.name
                    made.charges[here + 1] = rules.FUEL
                    made.leaving.add(here + 1)
                    made.polls.append(Poll(polls.back_label(number), fuel, leaves=True))
                    made.body.append(Instruction("bra", (), (target,), Guard(counter), inner.position))
                    made.body.append(again)
                    return len(wanted)
        return made.refuse("the end of a loop whose turns are counted", first)

    def _counter(self, statement: Statement, opcode: str) -> Name | None:
        """Return the counter of a loop that an instruction writes, None if it is another one."""
        if not (isinstance(statement, Instruction) and statement.opcode == opcode and statement.operands):
            return None
        target = statement.operands[0]
        is_counter = isinstance(target, Name) and target.name.startswith(rules.COUNTER)
        return target if is_counter and isinstance(target, Name) and target.name in self.made.reserved else None

    def _check(self, at: int) -> int:
        """Take the check of the time; return how many statements it is."""
        wanted, made = templates.time_check(self._kernel.arrays, self._kernel.shared_base), self.made
        if self._body[at : at + len(wanted)] != wanted or made.checked >= 0:
            return 0
        made.checked = len(made.body)
        return len(wanted)

    def _agreement(self, at: int) -> int:
        """Take the check that a warp goes one way; return how many statements it is."""
        body, made = self._body, self.made
        first = body[at]
        if not (isinstance(first, Instruction) and first.opcode == "vote" and len(first.operands) == 3):
            return 0
        predicate = first.operands[1]
        if not isinstance(predicate, Name) or body[at : at + 2] != templates.agreement(predicate):
            return 0
        if not is_program_register(predicate):
            made.refuse("a register of the guard", first)
        made.traps = True
        made.trusted.update((len(made.body), len(made.body) + 1))
        made.body += body[at : at + 2]
        made.agreed[len(made.body)] = predicate.name
        return 2

    def _call(self, at: int) -> int:
        """Take a call with what hands the launch parameter over; return how many statements it is."""
        body, made = self._body, self.made
        first = body[at]
        if not (isinstance(first, Variable) and first.name.startswith(rules.PASSED)):
            return 0
        passing = templates.hand_over(first.name, self._kernel.arrays, self._kernel.width)
        end = at + len(passing)
        call = body[end] if end < len(body) else first
        if body[at:end] != passing or first.name in made.params or not isinstance(call, Instruction):
            made.refuse("how the launch parameter is handed over", first)
        made.params[first.name] = first
        self._check_call(call, first.name)
        made.trusted.update(range(len(made.body), len(made.body) + len(passing)))
        made.body += [*passing, call]
        return len(passing) + 1

    def _check_call(self, call: Instruction, passed: str) -> None:
        made = self.made
        if call.opcode != "call" or call.modifiers:
            made.refuse("a call", call)
        index, taken, given = split_call(call)
        callee = call.operands[index]
        function = self._kernel.functions.get(callee.name) if isinstance(callee, Name) else None
        if function is None or len(call.operands) != index + 2 or given[-1:] != (Name(passed),):
            made.refuse("a call of what has not been verified before", call)
        if len(taken) != len(function.returns) or len(given) != len(function.params):
            made.refuse("a call with other arguments", call)
        for operand, param in zip((*taken, *given[:-1]), (*function.returns, *function.params[:-1]), strict=True):
            variable = made.params.get(operand.name) if isinstance(operand, Name) else None
            if variable is None or variable_bytes(variable) != variable_bytes(param):
                made.refuse("a call with other arguments", call)
