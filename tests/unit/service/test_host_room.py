"""What instances of all tenants may have of the host's memory."""

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.service.admission.host_memory import host_bytes
from tensorwasm.tenancy.quotas import LEAST_MEMORY_BYTES
from tensorwasm.values import MIB


@given(st.integers(1, 1 << 44))
def test_a_reserve_and_the_compilers_part_are_left_wherever_one_instance_fits_beside_them(whole):
    room = host_bytes(whole)
    assert room >= LEAST_MEMORY_BYTES
    assert room == LEAST_MEMORY_BYTES or room <= whole * 3 // 4 - 384 * MIB + 1


def test_a_group_of_3_gib_holds_seven_instances_of_usual_size():
    assert host_bytes(3072 * MIB) // (256 * MIB) == 7
