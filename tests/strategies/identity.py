"""Tokens, tenants and scopes, good and bad, and lists of tokens as operators write them."""

from hypothesis import strategies as st

from tensorwasm.tenancy.principal import MAX_TENANT, SCOPES

tenants = st.one_of(st.integers(0, 20), st.integers(0, MAX_TENANT))
tenant_sets = st.one_of(st.none(), st.frozensets(tenants, min_size=1, max_size=5))
scope_sets = st.frozensets(st.sampled_from(sorted(SCOPES)), min_size=1)
strong_tokens = st.from_regex(r"\A[A-Za-z0-9\-._~+/]{16,40}={0,2}\Z").filter(
    lambda text: "changeme" not in text.lower()
)


@st.composite
def entries(draw):
    """A token, its tenants, and its entry as an operator writes it, with spaces where they do no harm."""
    token = draw(strong_tokens)
    chosen = draw(tenant_sets)
    space = draw(st.sampled_from(["", " ", "  "]))
    numbers = "*" if chosen is None else f"{space},{space}".join(map(str, sorted(chosen)))
    return token, chosen, f"{space}{token}:tenant={numbers}{space}"


entry_lists = st.lists(entries(), max_size=5, unique_by=lambda entry: entry[0])
list_texts = st.text(st.sampled_from("abcdefgh0123456789:=*,.-_ tenant\u017f\u212a"), max_size=120)
