"""Stop sequences end an answer in the same place however it comes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tensorwasm.server.openai.reading import Token
from tensorwasm.server.openai.stopping import Stopper

TEXTS = st.lists(st.text("abc", max_size=6))
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def expected(text: str, stops: list[str]) -> str:
    """Read characters one by one, until a sequence is complete."""
    for end in range(1, len(text) + 1):
        complete = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: min(complete)]
    return text


@given(TEXTS, STOPS)
@example(["ab", "cd"], ["bcd", "c"])
@example(["a", "a", "b"], ["aab"])
@example(["aa", "ab"], ["aab"])
@example(["abc"], ["c", "abc"])
def test_an_answer_ends_before_the_first_sequence(texts: list[str], stops: list[str]) -> None:
    stopper = Stopper(stops)
    pieces = [piece for each in texts for piece in stopper.feed(each, [])] + stopper.finish()
    assert "".join(piece.text for piece in pieces) == expected("".join(texts), stops)


@given(TEXTS, STOPS)
def test_nothing_is_sent_that_would_have_to_be_taken_back(texts: list[str], stops: list[str]) -> None:
    stopper, sent = Stopper(stops), ""
    whole = expected("".join(texts), stops)
    for each in texts:
        sent += "".join(piece.text for piece in stopper.feed(each, []))
        assert whole.startswith(sent)


@given(TEXTS, STOPS)
def test_no_more_is_held_back_than_a_sequence_may_begin_with(texts: list[str], stops: list[str]) -> None:
    stopper, sent, came = Stopper(stops), "", ""
    for each in texts:
        came += each
        sent += "".join(piece.text for piece in stopper.feed(each, []))
        if stopper.stopped:
            return
        held = came[len(sent) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(TEXTS, STOPS)
def test_log_probabilities_stay_with_the_text_that_they_are_of(texts: list[str], stops: list[str]) -> None:
    stopper = Stopper(stops)
    pieces = [
        piece for at, each in enumerate(texts) for piece in stopper.feed(each, [Token(str(at), -1.0)])
    ] + stopper.finish()
    sent = expected("".join(texts), stops)
    begins, at = [], 0
    for index, each in enumerate(texts):
        if at < len(sent) and each:
            begins.append(str(index))
        at += len(each)
    found = [token.token for piece in pieces for token in piece.logprobs]
    assert found == sorted(found, key=int)
    assert set(begins) <= set(found)
    kept = len("".join(texts))
    if len(sent) < kept:
        assert all(sum(map(len, texts[: int(each)])) <= len(sent) for each in found)
