"""Nodes of a module: compared by meaning, and released however deep they are."""

import subprocess
import sys

import pytest

from tensorwasm.ptx.model import Instruction, Name, Position


@pytest.mark.parametrize("node", ["Pair(node, node)", "Vector((node,))", "Address(node)", "Not(node)"])
def test_a_long_chain_of_nodes_is_released(node):
    """The parser makes none; a release that goes down the stack would end the process, so another one does it here."""
    code = (
        "from tensorwasm.ptx.model import *\n"
        f"node = Name('a')\nfor _ in range(500_000): node = {node}\ndel node\nprint('released')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "released\n")


def test_instructions_compare_without_their_position():
    one = Instruction("add", ("u32",), (Name("a"), Name("b")), position=Position(1, 2))
    same = Instruction("add", ("u32",), (Name("a"), Name("b")), position=Position(3, 4))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Instruction("sub", ("u32",), one.operands)
    assert one != "add.u32"
