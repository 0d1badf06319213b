"""60 hostile texts for names, prompts, completions, metadata and file names."""

from __future__ import annotations

_MARKUP = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>", "<svg/onload=alert(1)>", "\"><script>alert(1)</script>",
    "'><script>alert(1)</script>", "\" onmouseover=\"alert(1)", "' onfocus='alert(1)' autofocus='",
    "<a href=javascript:alert(1)>x</a>", "javascript:alert(1)", "data:text/html,<script>alert(1)</script>",
    "<iframe src=//example.org>", "<base href=//example.org/>", "<style>*{display:none}</style>",
    "<link rel=stylesheet href=//example.org/x.css>", "<form action=//example.org><button>", "</title>",
    "</textarea><script>alert(1)</script>", "</table></main></body></html>", "<!--", "-->", "<![CDATA[",
    "<plaintext>", "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\">",
    "<math><mi xlink:href=javascript:alert(1)>", "<button hx-get=/portal/sign-out hx-trigger=load>",
    "<div hx-on:click=alert(1)>", "&lt;script&gt;", "&#60;script&#62;", "&amp;amp;", "<meta http-equiv=refresh>",
    "`${alert(1)}`", "<template shadowrootmode=open>",
)  # fmt: skip
_TEMPLATES = (
    "{{ 7 * 7 }}", "{% raw %}", "{% endblock %}", "{# x #}", "{{ config }}", "${7*7}", "#{7*7}", "<%= 7*7 %>",
    "{{ ''.__class__.__mro__ }}", "%(name)s", "{0}", "{name}",
)  # fmt: skip
_CHARACTERS = (
    "a\u202egnp.exe", "\u2066x\u2069", "\u200ex\u200f", "a\u0000b", "a\u0007\u001b[31mb", "\u007f\u0085",
    "\ufeffx\u200b\u2060", "\u2028\u2029", "e\u0301\u0301\u0301", "\U000e0041\U000e0042", "\U0001f469\u200d\U0001f4bb",
    "مرحبا", "\n\r\t \n",
)  # fmt: skip
TEXTS: tuple[str, ...] = (*_MARKUP, *_TEMPLATES, *_CHARACTERS, "x" * 100_000)
