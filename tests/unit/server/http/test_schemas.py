"""What a guest wrote, in answers: whole, or its end."""

import base64

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tensorwasm.errors import GuestExit, InvalidArgs
from tensorwasm.server.http.schemas import ENDING_BYTES, Output, failure_fields

WRITTEN = st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode())


@given(WRITTEN, st.integers(1, 60))
def test_the_end_of_output_is_a_suffix_of_bounded_length(written, most):
    shown = Output.end_of(written, most)
    if not written:
        assert shown is UNSET
        return
    kept = shown.text.encode() if shown.text is not UNSET else base64.b64decode(shown.base64)
    assert written.endswith(kept)
    assert len(kept) <= most
    assert shown.truncated == (len(written) > most)
    assert len(kept) >= min(most, len(written)) - 3


@given(st.text(alphabet="aé€😀", min_size=1, max_size=60), st.integers(4, 60))
def test_the_end_of_a_text_divides_no_character(text, most):
    assert Output.end_of(text.encode(), most).text is not UNSET


def test_only_guest_errors_carry_the_end_of_output():
    found = failure_fields(GuestExit(3, b"x" * (ENDING_BYTES + 1), b""))
    assert found == {"stdout": Output(text="x" * ENDING_BYTES, truncated=True), "exit_code": 3}
    assert failure_fields(InvalidArgs("what")) == {}
