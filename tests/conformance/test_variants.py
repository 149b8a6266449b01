"""One text with a kernel for several devices: the runtime takes the variant that this device runs best."""

from __future__ import annotations

import re
import struct

import pytest

from conformance.puppet import Puppet
from fakes.argv import encode_argv
from tensorwasm.errors import UnsupportedPtx
from tensorwasm.gpu.session import Session
from tensorwasm.guest.imports.argv import WindowArg
from tensorwasm.values import Deadline

AT = 2048


def variant(target, version, number):
    """A kernel that says which variant it is."""
    return f""".version {version}
.target {target}
.address_size 64
.visible .entry which(.param .u64 .ptr .global out)
{{
  .reg .b64 %rd<2>;
  ld.param.u64 %rd0, [out];
  cvta.to.global.u64 %rd1, %rd0;
  st.global.u32 [%rd1], {number};
}}
"""


OLD, NEWER, FUTURE, TOO_NEW = (
    variant("sm_70", "7.0", 70),
    variant("sm_75", "7.0", 75),
    variant("sm_999", "7.0", 999),
    variant("sm_75", "9.99", 99),
)


def run(puppet, *variants):
    kernel = puppet.load("".join(variants).encode(), b"which")
    if kernel < 0:
        return kernel
    assert puppet.start(kernel, encode_argv([WindowArg(AT, 4)]), block=(1, 1, 1)) == 0, puppet.error()
    return struct.unpack("<I", puppet.get(AT, 4))[0]


@pytest.mark.hardware("BUG-7-isa")
@pytest.mark.parametrize(
    ("variants", "taken"),
    [
        ((OLD,), 70),
        ((OLD, NEWER), 75),
        ((NEWER, OLD), 75),
        ((FUTURE, OLD, TOO_NEW, NEWER), 75),
        ((FUTURE,), -4),
        ((FUTURE, TOO_NEW), -4),
    ],
)
def test_the_best_that_runs_here_is_taken(device, variants, taken):
    with Puppet(device) as puppet:
        assert run(puppet, *variants) == taken


def test_a_refusal_names_what_was_offered_and_what_the_device_takes(device):
    with Puppet(device) as puppet:
        assert run(puppet, FUTURE, TOO_NEW) == -4
        text = puppet.error()
        major, minor = device.info.compute_capability
        assert re.search(rf"sm_999.*sm_75 \(ISA 9.99\).*sm_{major}{minor}", text)


def test_a_damaged_variant_spoils_the_text_wherever_it_stands(device):
    with Puppet(device) as puppet:
        assert run(puppet, OLD, NEWER.replace("st.global", "st.globule")) == -4
        assert run(puppet, OLD.replace("%rd<2>", "%rd<1>"), NEWER) == -4


def test_another_architecture_can_be_asked_for(device):
    with Session(device, architecture=(7, 0)) as session:
        kernel = session.kernels.load((OLD + NEWER).encode(), "which", Deadline())
        assert kernel > 0
        with pytest.raises(UnsupportedPtx, match="sm_70"):
            session.kernels.load(NEWER.encode(), "which", Deadline())
