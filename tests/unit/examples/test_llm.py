"""The language model in C against the same network in NumPy, and against requests that nobody checked."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorwasm import Runtime
from tensorwasm.errors import GuestTrap

FOLDER = Path(__file__).parents[3] / "examples" / "llm"


@pytest.fixture(scope="module")
def train():
    """The script that made the weights."""
    sys.path.insert(0, str(FOLDER))
    import train  # noqa: PLC0415 - a script, found once its folder is on the path

    yield train
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def reference(train):
    """What comes next after some tokens: states and logits, each a row for each token."""
    from network import Node, run  # noqa: PLC0415 - the same

    shape, merges, weights = train.read((FOLDER / "weights.bin").read_bytes())

    def network(tokens):
        states, logits = run(shape, {name: Node(value) for name, value in weights.items()}, np.array([tokens]))
        return states.value[0], logits.value[0]

    return network, merges


@pytest.fixture(scope="module")
def model():
    with Runtime(device="emulator") as runtime:
        yield runtime.load(FOLDER / "llm.wasm")


def ask(model, **document):
    text = json.dumps({"tensorwasm": 1, **document}, ensure_ascii=False).encode()
    return [json.loads(line) for line in b"".join(model.invoke("main", input=text).chunks).splitlines()]


def answer(lines):
    return "".join(line.get("delta", "") for line in lines)


def test_the_model_answers_each_question_of_its_corpus(model, train):
    for question, wanted in train.read_corpus():
        lines = ask(model, kind="chat", messages=[{"role": "user", "content": question}])
        assert answer(lines) == wanted
        assert lines[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("text", ["What is a GPU?", "zebra", "Grüße, 世界 😀", "a" * 60, '"quoted"\\\n\t'])
def test_log_probabilities_are_those_of_numpy(model, train, reference, text):
    network, merges = reference
    lines = ask(model, kind="completion", prompt=text, logprobs=True, top_logprobs=5, max_tokens=8)
    tokens = train.encode(text, merges)
    assert lines[0]["usage"]["prompt_tokens"] == len(tokens)
    spelled = {token: spell(token, merges) for token in range(259 + len(merges))}
    for line in lines[1:-1]:
        logits = network(tokens)[1][-1].astype(np.float64)
        logprobs = logits - (logits.max() + math.log(np.exp(logits - logits.max()).sum()))
        [shown] = line["logprobs"]
        assert shown["logprob"] == pytest.approx(logprobs.max(), abs=2e-3)
        best = sorted(logprobs, reverse=True)[:5]
        assert [other["logprob"] for other in shown["top_logprobs"]] == pytest.approx(best, abs=2e-3)
        token = max(range(len(logprobs)), key=lambda index: logprobs[index])
        assert bytes(shown["bytes"]) == spelled[token]
        tokens.append(token)


def spell(token, merges):
    if token < 256:
        return bytes([token])
    return b"".join(spell(part, merges) for part in merges[token - 259]) if token >= 259 else b""


def test_embeddings_are_those_of_numpy(model, train, reference):
    network, merges = reference
    texts = ["What is a kernel?", "", "something else"]
    lines = ask(model, kind="embedding", input=texts)
    assert len(lines) == 1 + len(texts) + 1
    for text, line in zip(texts, lines[1:-1], strict=True):
        states, _ = network([256, *train.encode(text, merges)])
        mean = states.mean(0)
        assert line["embedding"] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-3)
    [short] = ask(model, kind="embedding", input=["x"], dimensions=8)[1:-1]
    assert np.linalg.norm(short["embedding"]) == pytest.approx(1, abs=1e-4)


def test_a_seed_repeats_what_it_drew_and_another_draws_something_else(model):
    def draw(seed):
        return answer(ask(model, kind="completion", prompt="What", temperature=2, seed=seed, max_tokens=20))

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(8)}) > 4


def test_a_nucleus_of_next_to_nothing_is_greedy(model):
    greedy = ask(model, kind="completion", prompt="Why", max_tokens=10)
    assert answer(ask(model, kind="completion", prompt="Why", max_tokens=10, temperature=1, top_p=0)) == answer(greedy)


def test_a_long_conversation_loses_its_beginning(model):
    told = [{"role": role, "content": "again " * 500} for role in ("user", "assistant") * 20]
    lines = ask(model, kind="chat", messages=[*told, {"role": "user", "content": "What is a GPU?"}])
    assert lines[0]["usage"]["prompt_tokens"] <= 128
    assert lines[-1]["finish_reason"] in {"stop", "length"}


def test_nothing_to_answer_is_an_error_of_the_protocol(model):
    for document in ({"kind": "chat", "messages": []}, {"kind": "completion", "prompt": ""}, {"kind": "embedding"}):
        assert "error" in ask(model, **document)[-1]
    assert "error" in ask(model, kind="embedding", input=["x"], dimensions=100_000)[-1]


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=100).map(
            lambda text: f'{{"kind":"chat","messages":[{{"role":"user","content":"{text}'.encode()
        ),
        st.dictionaries(
            st.sampled_from(("kind", "messages", "prompt", "input", "seed", "max_tokens", "top_p", "temperature")),
            st.recursive(
                st.none() | st.text(max_size=5) | st.integers() | st.floats(allow_nan=False),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(("role", "content")), inner, max_size=2)
                ),
                max_leaves=6,
            ),
        ).map(lambda document: json.dumps(document).encode()),
    )
)
def test_any_input_gives_lines_of_json_or_no_output(model, data):
    for line in b"".join(model.invoke("main", input=data).chunks).splitlines():
        assert isinstance(json.loads(line), dict)


def test_nobody_trusts_it_with_more_than_it_can_read(model):
    try:
        lines = model.invoke("main", input=b" " * (9 << 20)).chunks
    except GuestTrap:
        pytest.fail("a long request trapped")
    assert b"longer than this model takes" in b"".join(lines)
