"""Corpus of 60 hostile texts: markup, template syntax, control characters, very long lines.

A text that runs as a script sets `window.pwned`. A page shows each text inertly.
"""

from __future__ import annotations

PWNED = "pwned"
"""Name of the global variable that a text sets if it runs as a script."""
_RUN = f"window.{PWNED}=1"

HOSTILE: dict[str, str] = {
    # Markup.
    "script": f"<script>{_RUN}</script>",
    "script, upper case": f"<SCRIPT>{_RUN}</SCRIPT >",
    "nested script": f"<scr<script>ipt>{_RUN}</scr</script>ipt>",
    "image": f"<img src=x onerror={_RUN}>",
    "image without space": f"<img/src=x/onerror={_RUN}>",
    "vector image": f"<svg onload={_RUN}>",
    "vector script": f"<svg><script>{_RUN}</script></svg>",
    "details": f"<details open ontoggle={_RUN}>",
    "input": f"<input autofocus onfocus={_RUN}>",
    "frame": f"<iframe srcdoc='<script>parent.{_RUN}</script>'>",
    "object": "<object data='data:text/html,<b>x</b>'>",
    "form": "<form action=https://example.invalid><button>Sign in</button></form>",
    "base": "<base href=https://example.invalid/>",
    "refresh": "<meta http-equiv=refresh content='0;url=https://example.invalid'>",
    "style": "<style>*{display:none}</style>",
    "link": "<link rel=stylesheet href=https://example.invalid/x.css>",
    "template": f"<template shadowrootmode=open><script>{_RUN}</script></template>",
    "custom element": "<ts-chart data-series='x'></ts-chart>",
    "htmx": "<b hx-get=/portal/settings hx-trigger=load>x</b>",
    "htmx, new": f"<b hx-on:click='{_RUN}' data-hx-get=/x>x</b>",
    # Ends of what surrounds the text.
    "end of title": f"</title><script>{_RUN}</script>",
    "end of text area": f"</textarea><script>{_RUN}</script>",
    "end of script": f"</script><script>{_RUN}</script>",
    "end of comment": f"--><script>{_RUN}</script><!--",
    "end of CDATA": f"]]><script>{_RUN}</script>",
    "end of attribute": f'" onmouseover="{_RUN}" x="',
    "end of single quotes": f"' onmouseover='{_RUN}' x='",
    "end of unquoted attribute": f"x onmouseover={_RUN} y",
    "end of string": f"';{_RUN};//",
    "end of template string": f"`;${{{_RUN}}};`",
    "end of table": "</td></tr></table></main></body></html>",
    "open comment": "<!-- ",
    "open tag": "<a href='",
    # Addresses.
    "script address": f"javascript:{_RUN}",
    "script address with tab": f"java\tscript:{_RUN}",
    "data address": f"data:text/html,<script>{_RUN}</script>",
    "other host": "//example.invalid/x.jsonl",
    "path": "../../../../etc/passwd",
    "encoded path": "..%2f..%2fetc%2fpasswd?x=1#y",
    # Template syntax, formats and formulas.
    "expression": "{{ 7*7 }} {{ config }}",
    "statement": "{% for x in ().__class__.__mro__ %}{% endfor %}",
    "template comment": "{# gone #}",
    "template literal": "${7*7} #{7*7} <%= 7*7 %>",
    "format": "%s %d %n {0} {name} %(name)s",
    "formula": '=HYPERLINK("https://example.invalid","x")',
    "SQL": "'; DROP TABLE jobs; --",
    "JSON": '{"__proto__": {"polluted": true}}',
    "entities": "&lt;script&gt; &amp;amp; &#60;b&#62; &nbsp;",
    "Markdown": "[x](javascript:alert(1)) ![x](https://example.invalid/x.png)",
    # Characters.
    "right to left": "photo\u202egnp.exe",
    "isolates": "\u2066a\u2067b\u2068c\u2069d\u200e\u200f",
    "zero width": "ad\u200bmin\u200d\u2060\ufeff",
    "control characters": "a\x01b\x07c\x08d\x0be\x0cf\x1b[31mred\x1b[0m\x7f\x85",
    "lines": "a\nb\rc\r\nd\u2028e\u2029f",
    "combining characters": "Z\u0335\u0321\u0322\u0334\u0310\u0310" * 5,
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467\U0001f3fd \U0001f1e9\U0001f1ea",
    "letters that look alike": "\u0430dm\u0456n \uff1cscript\uff1e",
    "blanks": " \t\u00a0\u3000 ",
    # Size.
    "one long line": "m" * 100_000,
    "many tags": "<b>" * 20_000,
}


def of_length(most: int) -> list[str]:
    """Return the texts, cut after `most` characters, without those that are blank."""
    return [text[:most] for text in HOSTILE.values() if text.strip()]
