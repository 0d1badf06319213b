"""Token ids and labels: what is masked, what is cut, what is counted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tiny_model import CHATML, make_tiny_tokenizer
from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import DataPlan
from tunesmith_worker.trainer.data.formats import Row, detect, parse
from tunesmith_worker.trainer.data.tokens import IGNORED, TokenizedRows, tokenize_rows

from . import templates


def plan(**changes: Any) -> DataPlan:  # Any: fields of several types
    usual = {"max_seq_length": 256, "overlong": "drop", "assistant_only_loss": True}
    return DataPlan(**{**usual, "packing": False, **changes})


def rows(*records: dict[str, Any]) -> list[Row]:  # Any: JSON
    return [parse(i, record, detect(record)) for i, record in enumerate(records, start=1)]


def tokenized(tokenizer: Any, *records: dict[str, Any], **changes: Any) -> TokenizedRows:
    return tokenize_rows(
        rows(*records), tokenizer, plan(**changes), name="train.jsonl", vocabulary=len(tokenizer)
    )


def trained(tokenizer: Any, data: TokenizedRows, index: int = 0) -> str:
    labels = data.dataset[index]["labels"]
    return str(tokenizer.decode([label for label in labels if label != IGNORED]))


QA = {"question": "How much is two plus three?", "answer": "Five.\n\nIt is five \u00e9\u65e5."}


def test_the_answer_and_its_end_are_trained_and_nothing_else() -> None:
    tokenizer = make_tiny_tokenizer()
    data = tokenized(tokenizer, QA)
    assert trained(tokenizer, data) == QA["answer"] + "<|im_end|>"
    example = data.dataset[0]
    assert (
        example["input_ids"]
        == tokenizer.apply_chat_template(
            [
                {"role": "user", "content": QA["question"]},
                {"role": "assistant", "content": QA["answer"]},
            ]
        )["input_ids"]
    )
    assert data.counts.without_end_token == 0


def test_there_is_one_bos_although_template_and_tokenizer_both_add_it() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = make_tiny_tokenizer(
        chat_template=templates.LLAMA3, bos_token="<s>", eos_token="</s>"
    )
    bos = tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    for record in (QA, {"prompt": "a", "completion": "b"}):
        ids = tokenized(tokenizer, record).dataset[0]["input_ids"]
        assert ids.count(bos) == 1
        assert ids[0] == bos


def test_eos_is_trained_even_when_it_is_the_padding_token() -> None:
    tokenizer = make_tiny_tokenizer(pad_token="<|im_end|>")
    for record in (QA, {"text": "Hello"}, {"prompt": "Hello ", "completion": "there"}):
        labels = tokenized(tokenizer, record).dataset[0]["labels"]
        assert [x for x in labels if x != IGNORED][-1] == tokenizer.eos_token_id


def test_plain_prompt_and_completion_are_labelled_as_by_trl() -> None:
    tokenizer = make_tiny_tokenizer(chat_template=None)
    data = tokenized(tokenizer, {"prompt": "How much?", "completion": " Five."})
    prompt, whole = tokenizer("How much?")["input_ids"], tokenizer("How much? Five.<|im_end|>")
    assert data.dataset[0]["input_ids"] == whole["input_ids"]
    assert data.dataset[0]["labels"] == [IGNORED] * len(prompt) + whole["input_ids"][len(prompt) :]


def test_text_rows_are_trained_whole() -> None:
    tokenizer = make_tiny_tokenizer()
    data = tokenized(tokenizer, {"text": "Hello there"})
    ids = data.dataset[0]["input_ids"]
    assert data.dataset[0]["labels"] == [IGNORED, *ids[1:]]
    assert ids[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("trim", [True, False])
def test_white_space_inside_an_answer_is_trained_whatever_the_offsets(trim: bool) -> None:
    from tokenizers.processors import ByteLevel

    tokenizer = make_tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=trim)
    answer = "Five.\n\n  Two \n\t plus"
    data = tokenized(tokenizer, {"question": "a", "answer": answer})
    assert trained(tokenizer, data) == answer + "<|im_end|>"


def test_long_rows_are_dropped_cut_or_refused_as_asked() -> None:
    tokenizer = make_tiny_tokenizer()
    long = {"question": "hi", "answer": "word " * 60}
    dropped = tokenized(tokenizer, QA, long, max_seq_length=60).counts
    assert (dropped.rows, dropped.kept, dropped.dropped_too_long) == (2, 1, 1)
    assert "1 of 2 rows dropped, longer than max_seq_length=60" in next(dropped.warnings("x", 60))
    cut = tokenized(tokenizer, QA, long, max_seq_length=60, overlong="truncate")
    assert (cut.counts.kept, cut.counts.truncated, cut.counts.longest) == (2, 1, 60)
    assert (cut.counts.answers_cut, cut.counts.without_end_token) == (1, 0)
    with pytest.raises(RunError, match=r"row 2 has \d+ tokens, more than max_seq_length=60"):
        tokenized(tokenizer, QA, long, max_seq_length=60, overlong="error")


@pytest.mark.parametrize(("context", "raises"), [(None, True), (61, True), (60, False)])
@pytest.mark.parametrize("overlong", ["drop", "error"])
def test_hints_for_long_rows_respect_the_models_context(
    context: int | None, raises: bool, overlong: str
) -> None:
    long = {"question": "hi", "answer": "word " * 60}
    with pytest.raises(RunError) as caught:
        tokenized(
            make_tiny_tokenizer(), long, max_seq_length=60, overlong=overlong, context=context
        )
    hint = caught.value.failure.hint or ""
    assert ("raise recipe.max_seq_length" in hint) == raises
    assert "split the rows" in hint


def test_a_row_cut_down_to_its_prompt_is_dropped() -> None:
    tokenizer = make_tiny_tokenizer()
    long = {"question": "word " * 60, "answer": "hi"}
    counts = tokenized(tokenizer, QA, long, max_seq_length=60, overlong="truncate").counts
    assert (counts.kept, counts.dropped_truncated) == (1, 1)


def test_no_row_left_is_an_error_that_says_why() -> None:
    tokenizer = make_tiny_tokenizer()
    with pytest.raises(RunError, match="all 1 rows are longer than max_seq_length=8") as caught:
        tokenized(tokenizer, QA, max_seq_length=8)
    assert caught.value.failure.code == ErrorCode.NO_TRAINABLE_TOKENS
    tokenizer.chat_template = templates.COUNTING
    with pytest.raises(RunError, match="1 assistant turns could not be found") as caught:
        tokenized(tokenizer, QA)
    assert caught.value.failure.code == ErrorCode.NO_TRAINABLE_TOKENS


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    tokenizer = make_tiny_tokenizer()
    with pytest.raises(RunError, match="the model has only 100 embeddings"):
        tokenize_rows(rows(QA), tokenizer, plan(), name="x", vocabulary=100)


def test_a_rewriting_template_gives_an_example_for_each_turn() -> None:
    tokenizer = make_tiny_tokenizer(chat_template=templates.QWEN3)
    turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    record = {"messages": [{"role": role, "content": content} for role, content in turns]}
    counts = tokenized(tokenizer, record).counts
    assert (counts.rows, counts.kept, counts.examples) == (1, 1, 2)


def test_everything_is_trained_when_asked() -> None:
    tokenizer = make_tiny_tokenizer(chat_template=CHATML)
    data = tokenized(tokenizer, QA, assistant_only_loss=False)
    assert data.dataset[0]["labels"][1:] == data.dataset[0]["input_ids"][1:]
    assert data.counts.trained_tokens == data.counts.tokens - 1


def test_text_and_chat_completions_in_one_file_keep_their_own_endings() -> None:
    plain: dict[str, Any] = {"prompt": "One ", "completion": "two"}
    chat: dict[str, Any] = {
        "prompt": [{"role": "user", "content": "One"}],
        "completion": [{"role": "assistant", "content": "two"}],
    }
    tokenizer = make_tiny_tokenizer()
    data = tokenized(tokenizer, plain, chat, chat, plain).dataset
    texts = [tokenizer.decode(ids) for ids in data["input_ids"]]
    as_text = "One two<|im_end|>"
    as_chat = "<|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
    assert texts == [as_text, as_chat, as_chat, as_text]
