"""The requests of the playground as command line, SDK call and curl."""

from __future__ import annotations

import json
import shlex

from tunesmith_server.portal.new_job.same_as import Form

from . import form

_OPTIONS = {"temperature": "temperature", "top_p": "top-p", "max_tokens": "max-tokens",
            "seed": "seed"}  # fmt: skip
_MOST_IN_COMMAND = 2
"""Maximum number of models of one `tunesmith chat` command."""


def forms(texts: form.Texts, origin: str) -> list[Form]:
    """Return the requests to all chosen models as texts, for each interface."""
    models = form.chosen(texts) or ["MODEL"]
    body = {"messages": form.messages_of(texts), **form.parameters(texts)}
    found = [Form(name="curl", text="\n\n".join(_curl(model, body, origin) for model in models))]
    found.insert(0, Form(name="Python", text=_python(models, body)))
    if len(models) <= _MOST_IN_COMMAND:
        found.insert(0, Form(name="Command line", text=_command(models, texts)))
    return found


def _command(models: list[str], texts: form.Texts) -> str:
    parts = [f"tunesmith chat {shlex.quote(models[-1])}"]
    parts += [f"--against {shlex.quote(model)}" for model in models[:-1]]
    if system := texts.get("system", "").strip():
        parts.append(f"--system {shlex.quote(system)}")
    for name, value in form.parameters(texts).items():
        parts.append(f"--{_OPTIONS[name]} {shlex.quote(str(value))}")
    asked = texts.get("user", "")
    start = f"printf %s {shlex.quote(asked)} | " if asked.strip() else ""
    return start + " \\\n  ".join(parts)


def _python(models: list[str], body: dict[str, object]) -> str:
    arguments = "".join(f"        {name}={value!r},\n" for name, value in body.items())
    return (
        "import tunesmith\n\nclient = tunesmith.Client()\n"
        f"for model in {models!r}:\n"
        "    answer = client.chat.completions.create(\n"
        f"        model=model,\n{arguments}"
        "    )\n"
        "    print(model, answer.choices[0].message.content)"
    )


def _curl(model: str, body: dict[str, object], origin: str) -> str:
    return (
        f"curl {shlex.quote(origin + '/v1/chat/completions')} \\\n"
        '  -H "Authorization: Bearer $TUNESMITH_API_KEY" \\\n'
        "  -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(json.dumps({'model': model, **body}, ensure_ascii=False))}"
    )
