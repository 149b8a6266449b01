"""The page that shows the OpenAPI document to people: one file, without scripts and without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from typing import Any, Final

_STYLE: Final = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h2{margin:2rem 0 .5rem;text-transform:capitalize}
details{border:1px solid #8884;border-radius:.4rem;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer}
code,pre{font:14px/1.4 ui-monospace,monospace}
pre{overflow:auto;padding:.6rem;background:#8881;border-radius:.3rem}
b{display:inline-block;min-width:4.2rem}
table{border-collapse:collapse;margin:.5rem 0}
td{padding:.15rem .8rem .15rem 0;vertical-align:top}
"""

_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page's Content-Security-Policy: nothing runs, and nothing is loaded."""


def render(document: dict[str, Any]) -> bytes:
    """Return the page of a document."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    body = "".join(_groups(document))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(document['info']['description'])} "
        f'The same for programs: <a href="/openapi.json">openapi.json</a>.</p>{body}</html>'
    ).encode()


def _groups(document: dict[str, Any]) -> Iterator[str]:
    for tag in document["tags"]:
        yield f"<h2>{escape(tag['name'])}</h2>"
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    yield _operation(path, method, operation)
    yield "<h2>Types</h2>"
    for name, schema in document["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=2))
        yield f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><pre>{text}</pre></details>'


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code><td>{escape(each['in'])}<td>{escape(each.get('description', ''))}"
        for each in operation["parameters"]
    )
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code><td>{escape(answer['description'])}<td>{_link(answer)}"
        for status, answer in operation["responses"].items()
    )
    taken = f"<p>Takes {_link(operation['requestBody'])}</p>" if "requestBody" in operation else ""
    return (
        f"<details><summary><b>{escape(method.upper())}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
        f"</summary><p>{escape(operation.get('description', 'Open to everybody.'))}</p>"
        f"<table>{rows}</table>{taken}<table>{answers}</table></details>"
    )


def _link(part: dict[str, Any]) -> str:
    found = []
    for kind, content in part.get("content", {}).items():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        found.append(f'<a href="#{escape(name)}">{escape(name)}</a>' if name else escape(kind))
    return ", ".join(found)
