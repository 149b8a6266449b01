"""What instances of all tenants may have of the host's memory."""

from hypothesis import given
from hypothesis import strategies as st

from tensorwasm.service.host_room import LEAST_BYTES, host_bytes, with_share
from tensorwasm.values import MIB


@given(st.integers(1, 1 << 44))
def test_a_reserve_and_the_compilers_part_are_left_wherever_one_instance_fits_beside_them(whole):
    room = host_bytes(whole)
    assert room >= LEAST_BYTES
    assert room == LEAST_BYTES or room <= whole * 3 // 4 - 384 * MIB + 1


def test_a_group_of_3_gib_holds_seven_instances_of_usual_size():
    assert host_bytes(3072 * MIB) // (256 * MIB) == 7


def test_a_tenant_has_half_of_the_room_unless_it_is_told_otherwise():
    assert with_share({"qps": 1}, 2048 * MIB) == {"qps": 1, "memory_bytes": 1024 * MIB}
    assert with_share({"memory_bytes": 7}, 2048 * MIB) == {"memory_bytes": 7}
