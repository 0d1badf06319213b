"""The size of a prompt is known at once, so that finding it out stops no other request."""

from __future__ import annotations

from collections.abc import Iterator

from tunesmith_worker.inference.prompts import text_size


class Unread(list[int]):
    """Token ids that must not be read one by one."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the token ids were read")


def test_the_size_of_token_ids_is_their_number() -> None:
    assert text_size({"prompt": Unread([7] * 5)}) == 5
    assert text_size({"prompt": [Unread([7] * 5), Unread([7] * 6)]}) == 2 + 5 + 6


def test_the_size_of_texts_is_that_of_all_their_characters() -> None:
    assert text_size({"prompt": ["ab", "c"]}) == 2 + 3
    assert text_size({"messages": [{"role": "user", "content": "Hello"}]}) == 1 + 4 + 5
