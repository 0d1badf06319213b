"""`tunesmith chat`: a conversation with one model, or with two models side by side."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from tunesmith._http.errors import InvalidArgumentError, TunesmithError
from tunesmith._http.hints import in_commands
from tunesmith._sdk.chat import ChatParameters
from tunesmith._sdk.client import Client

from .conversation import Answer, Conversation
from .session import connected
from .side_by_side import answer_both

_BASE = "base"
"""Value of `--against` that means the base model of the tuned model."""
_QUIT = ("/quit", "/exit")


def add_to(app: typer.Typer) -> None:
    app.command("chat")(chat)


def chat(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Base model, tuned model (ft:...) or checkpoint.")],
    against: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL2",
            help="A second model for the same questions; `base` is the tuned model's base model.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 takes the most probable token.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the most probable tokens, up to this total probability."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of tokens of an answer.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
) -> None:
    """Chat with a model. Ctrl-C stops an answer; Ctrl-D or /quit ends the chat.

    Without a terminal, the command answers one question from standard input.
    """
    sampling = ChatParameters(
        temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed
    )
    with connected(ctx) as client:
        conversations = [
            Conversation(client, name, system, sampling)
            for name in compared_models(client, model, against)
        ]
        if sys.stdin.isatty():
            _talk(conversations)
            return
        question = sys.stdin.read().strip()
        if not question:
            raise InvalidArgumentError(
                "no question: standard input is empty",
                hint=f"echo 'Who are you?' | tunesmith chat {model}",
            )
        failed = _answer(conversations, question)
        if failed is not None:
            raise failed


def compared_models(client: Client, model: str, against: str | None) -> list[str]:
    """Return the names of the models that answer: `model`, and the model that `against` names.
    Raises an error for a name that does not exist."""
    first = client.models.retrieve(model)
    if against is None:
        return [model]
    if against != _BASE:
        client.models.retrieve(against)
        return [model, against]
    if first.base_model is None:
        raise InvalidArgumentError(
            f"{model!r} is a base model, so `--against base` means the same model",
            hint="name a tuned model, or pass another model to --against; "
            "client.models.list() shows all models",
        )
    return [model, first.base_model]


def _talk(conversations: list[Conversation]) -> None:
    with contextlib.suppress(ImportError):  # after this import, `input` can edit lines
        import readline  # noqa: F401  # importing it gives input() line editing
    names = " and ".join(conversation.model for conversation in conversations)
    typer.echo(f"{names}  (Ctrl-C stops an answer, Ctrl-D or /quit ends)", err=True)
    for question in _questions():
        failed = _answer(conversations, question)
        if failed is not None:
            typer.echo(f"error: {failed.message}", err=True)
            if failed.hint:
                typer.echo(f"hint: {in_commands(failed.hint)}", err=True)


def _questions() -> Iterator[str]:
    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo("\n(Ctrl-D or /quit ends the chat)", err=True)
            continue
        if question in _QUIT:
            return
        if question:
            yield question


def _answer(conversations: list[Conversation], question: str) -> TunesmithError | None:
    if len(conversations) > 1:
        answers = answer_both(conversations, question)
    else:
        answers = [_print_answer(conversations[0], question)]
    for conversation, answer in zip(conversations, answers, strict=True):
        conversation.remember(question, answer)
    return next((answer.error for answer in answers if answer.error is not None), None)


def _print_answer(conversation: Conversation, question: str) -> Answer:
    answer = Answer()
    try:
        with contextlib.closing(conversation.ask(question, answer)) as parts:
            for part in parts:
                sys.stdout.write(part)
                sys.stdout.flush()
    except KeyboardInterrupt:
        answer.note = "stopped"
    sys.stdout.write("\n")
    sys.stdout.flush()
    if answer.note:
        typer.echo(f"({answer.note})", err=True)
    return answer
