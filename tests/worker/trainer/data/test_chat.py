"""Which characters carry loss, for a corpus of chat templates: exact substrings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tiny_model import CHATML, make_tiny_tokenizer
from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.chat import RenderedRow, render
from tunesmith_worker.trainer.data.formats import BadRow, Message, Row, detect, parse

from . import templates

TWO_TURNS = (
    ("user", "Hello"),
    ("assistant", " Hi there "),
    ("user", "Sum?"),
    ("assistant", "Five"),
)


def tokenizer_for(template: str | None) -> Any:  # Any: transformers is untyped
    return make_tiny_tokenizer(chat_template=template, bos_token="<s>", eos_token="</s>")


def chat(*turns: tuple[str, str], untrained: int | None = None) -> Row:
    return Row(
        number=1,
        messages=tuple(
            Message(role=role, content=content, trained=i != untrained)
            for i, (role, content) in enumerate(turns)
        ),
    )


def trained(rendered: RenderedRow) -> list[list[str]]:
    return [[e.text[start:end] for start, end in e.spans] for e in rendered.examples]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, [[" Hi there <|im_end|>", "Five<|im_end|>"]]),
        (templates.LLAMA3, [["Hi there</s>", "Five</s>"]]),
        (templates.GEMMA, [["Hi there<|im_end|>", "Five<|im_end|>"]]),
        (templates.MISTRAL, [["  Hi there </s>", " Five</s>"]]),
        (
            templates.QWEN3,
            [
                ["<think>\n\n</think>\n\nFive<|im_end|>"],
                ["<think>\n\n</think>\n\n Hi there <|im_end|>"],
            ],
        ),
        (templates.DEEPSEEK, [[" Hi there </s>", "Five</s>"]]),
        (templates.GENERATION, [[" Hi there <|im_end|>", "Five<|im_end|>"]]),
        (templates.COUNTING_MARKED, [["Five<|im_end|>"], [" Hi there <|im_end|>"]]),
    ],
)
def test_the_assistant_turns_and_their_ends_are_trained(
    template: str, expected: list[list[str]]
) -> None:
    rendered = render(tokenizer_for(template), chat(*TWO_TURNS), assistant_only=True)
    assert trained(rendered) == expected
    assert rendered.skipped_turns == 0


def test_the_thinking_of_earlier_turns_is_trained_where_the_model_would_say_it() -> None:
    row = chat(
        ("user", "a"), ("assistant", "<think>\nx\n</think>\n\nb"), ("user", "c"), ("assistant", "d")
    )
    rendered = render(tokenizer_for(templates.QWEN3), row, assistant_only=True)
    assert trained(rendered) == [
        ["<think>\n\n</think>\n\nd<|im_end|>"],
        ["<think>\nx\n</think>\n\nb<|im_end|>"],
    ]
    # The later turn is trained after the history that the template would show then.
    assert "assistant\nb<|im_end|>" in rendered.examples[0].text


def test_structure_and_generation_markers_agree() -> None:
    tokenizer = tokenizer_for(templates.GENERATION)
    row = chat(("system", "Be kind"), *TWO_TURNS)
    marked = tokenizer.apply_chat_template(
        [m.for_template() for m in row.messages or ()],
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids = [i for i, m in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if m]
    (spans,) = trained(render(tokenizer, row, assistant_only=True))
    assert tokenizer.decode(ids) == "".join(spans)


def test_turns_that_cannot_be_proven_are_counted() -> None:
    rendered = render(tokenizer_for(templates.COUNTING), chat(*TWO_TURNS), assistant_only=True)
    assert rendered.examples == ()
    assert rendered.skipped_turns == 2


def test_a_turn_of_weight_zero_is_not_trained() -> None:
    row = chat(*TWO_TURNS, untrained=1)
    assert trained(render(tokenizer_for(CHATML), row, assistant_only=True)) == [["Five<|im_end|>"]]


def test_every_character_is_trained_when_asked() -> None:
    rendered = render(tokenizer_for(CHATML), chat(*TWO_TURNS), assistant_only=False)
    assert trained(rendered) == [[rendered.examples[0].text]]


def test_marker_strings_in_the_text_do_not_confuse_the_mask() -> None:
    row = chat(("user", "say <|im_start|>assistant\nno<|im_end|>"), ("assistant", "yes"))
    assert trained(render(tokenizer_for(CHATML), row, assistant_only=True)) == [["yes<|im_end|>"]]


def test_what_the_template_refuses_is_a_bad_row() -> None:
    row = chat(("system", "a"), ("user", "b"), ("assistant", "c"))
    words = r"row 1: .* \(roles system, user, assistant\): System role not supported"
    with pytest.raises(DataError, match=words) as caught:
        render(tokenizer_for(templates.GEMMA), row, assistant_only=True)
    assert caught.value.failure.code == ErrorCode.DATASET_INVALID
    assert caught.value.failure.hint


def test_roles_out_of_order_are_named_by_row() -> None:
    row = chat(("user", "a"), ("user", "b"), ("assistant", "c"))
    with pytest.raises(DataError, match=r"row 1: .*roles user, user, assistant") as caught:
        render(tokenizer_for(templates.GEMMA), row, assistant_only=True)
    assert caught.value.failure.hint
    assert "alternating" in caught.value.failure.hint


def test_conversations_need_a_chat_template() -> None:
    with pytest.raises(DataError, match="no chat template") as caught:
        render(tokenizer_for(None), chat(*TWO_TURNS), assistant_only=True)
    assert caught.value.failure.code == ErrorCode.TEMPLATE_MISSING
    assert caught.value.failure.hint


@pytest.mark.parametrize(
    ("record", "with_template", "without"),
    [
        (
            {"question": "Q?", "answer": "A."},
            ("<|im_start|>user\nQ?<|im_end|>\n<|im_start|>assistant\n", "A.<|im_end|>"),
            ("Q?\n", "A."),
        ),
        (
            {"instruction": "Do", "input": "it", "output": "Done"},
            ("<|im_start|>user\nDo\n\nit<|im_end|>\n<|im_start|>assistant\n", "Done<|im_end|>"),
            (
                "Below is an instruction that describes a task, paired with an input that provides "
                "further context. Write a response that appropriately completes the request.\n\n"
                "### Instruction:\nDo\n\n### Input:\nit\n\n### Response:\n",
                "Done",
            ),
        ),
        ({"prompt": "P ", "completion": "C"}, ("P ", "C"), ("P ", "C")),
        ({"text": "T"}, ("", "T"), ("", "T")),
    ],
)
def test_single_turn_rows_are_chat_only_when_the_model_knows_chat(
    record: dict[str, str], with_template: tuple[str, str], without: tuple[str, str]
) -> None:
    row = parse(1, record, detect(record))
    for template, (prompt, answer) in ((CHATML, with_template), (None, without)):
        (example,) = render(tokenizer_for(template), row, assistant_only=True).examples
        assert example.text.startswith(prompt + answer)
        assert example.spans == ((len(prompt), len(prompt + answer)),)


@pytest.mark.parametrize("template", [CHATML, templates.LLAMA3, templates.GENERATION])
def test_a_conversation_may_begin_with_the_assistant(template: str) -> None:
    row = chat(("assistant", "Welcome"), ("user", "Hi"), ("assistant", "Five"))
    rendered = render(tokenizer_for(template), row, assistant_only=True)
    assert rendered.skipped_turns == 0
    spans = [text for example in trained(rendered) for text in example]
    assert [text.split("<")[0] for text in spans] == ["Welcome", "Five"]


def test_arguments_of_a_tool_call_reach_the_template_as_an_object() -> None:
    call = {
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    value = {
        "messages": [
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": "?"},
            {"role": "assistant", "tool_calls": [call]},
        ]
    }
    messages = parse(1, value, detect(value)).messages
    assert messages is not None
    assert messages[0].role == "system"
    (seen,) = messages[2].for_template()["tool_calls"]
    assert seen["function"] == {"name": "weather", "arguments": {"city": "Paris"}}
    call["function"]["arguments"] = '{"city": '  # type: ignore[index]  # a dict of dicts
    with pytest.raises(BadRow, match=r"tool_calls\[0\].function.arguments is not valid JSON"):
        parse(1, value, detect(value))
