"""Secrets that anybody would guess and files that anybody can read are refused, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunesmith_schema.unsafe import check_private, check_token, check_url, is_loopback
from tunesmith_schema.variables import unknown_variable_warnings


@pytest.mark.parametrize(
    "token",
    [
        "change-me",
        "Change_Me_2026",
        "secret",
        "your-secret-token-here",
        "tunesmith-worker-token",
        "password-password-password",
        "xxxxxxxxxxxxxxxxxxxxxxxx",
        "----------------------",
    ],
)
def test_a_placeholder_is_no_token(token: str) -> None:
    with pytest.raises(ValueError, match=r"^IT is a placeholder: use a random value") as caught:
        check_token("IT", token)
    assert token not in str(caught.value)


def test_a_token_has_16_characters() -> None:
    check_token("IT", "kF3-9sQ_zP0aB7xY")
    with pytest.raises(ValueError, match=r"^IT has 15 characters, fewer than 16") as caught:
        check_token("IT", "kF3-9sQ_zP0aB7x")
    assert "kF3" not in str(caught.value)


GOOD = "kF3-9sQ_zP0a"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tunesmith:tunesmith@127.0.0.1/tunesmith",
        "postgresql://ann:Ann@db.internal/tunesmith",
        "postgresql+psycopg://tunesmith:PASSWORD@db.internal/tunesmith",
        "postgresql://tunesmith:change%2Dme@db.internal/tunesmith",
        "postgresql://postgres@db.internal/tunesmith?password=postgres",
        "redis://:secret@127.0.0.1:6379/0",
        "redis://default:redis@redis:6379/0",
        "amqp://guest:guest@rabbit:5672//",
        f"sentinel://:{GOOD}@one:26379;sentinel://:redis@two:26379",
    ],
)
def test_a_default_password_in_a_url_is_refused_wherever_the_host_is(url: str) -> None:
    with pytest.raises(ValueError, match=r"^the password in IT is (a placeholder|the same)"):
        check_url("IT", url, needs_password=True)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tunesmith@db.internal/tunesmith",
        "postgresql://tunesmith:@db.internal/tunesmith",
        "postgresql://tunesmith@/tunesmith?host=db.internal",
        "postgresql://tunesmith@localhost,db.internal/tunesmith",
        "redis://redis:6379/0",
        "redis://10.0.0.7/0",
        "redis://[fd00::7]:6379/0",
        f"sentinel://:{GOOD}@one:26379;sentinel://two:26379",
    ],
)
def test_another_host_needs_a_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"^IT has no password for (db|redis|10|\[fd|two)"):
        check_url("IT", url, needs_password=True)
    check_url("IT", url, needs_password=False)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory://",
        "sqlite:////var/lib/tunesmith/tunesmith.db",
        "filesystem:///var/lib/tunesmith/broker",
        "redis+socket:///var/lib/tunesmith/broker.sock",
        "redis+socket:///var/lib/tunesmith/broker.sock?virtual_host=1",
        "redis://127.0.0.1:6379/0",
        "redis://localhost",
        "redis://[::1]:6379/0",
        f"redis://:{GOOD}@redis.internal:6379/0",
        "rediss://redis.internal:6379/0?ssl_certfile=/etc/client.pem",
        "postgresql://postgres@/postgres?host=/tmp/tunesmith-postgresql-x/data",
        f"postgresql://tunesmith:{GOOD}@db.internal:5432/tunesmith",
        f"postgresql://tunesmith:{GOOD}#/?@db.internal:5432/tunesmith",
        "postgresql://tunesmith@db.internal/tunesmith?passfile=/etc/pgpass",
        "not a url",
    ],
)
def test_other_urls_are_left_to_those_who_use_them(url: str) -> None:
    check_url("IT", url, needs_password=True)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_what_stays_on_this_machine(host: str, here: bool) -> None:
    assert is_loopback(host) is here


@pytest.mark.parametrize("mode", [0o701, 0o704, 0o755, 0o777])
def test_what_others_may_enter_or_read_is_not_private(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ValueError, match=rf"mode {mode:o}\): run `chmod o-rwx '.*/a b'`$"):
        check_private(folder, "the data directory")
    folder.chmod(mode & 0o770)
    check_private(folder, "the data directory")


def test_a_misspelled_variable_is_told_the_nearest_one() -> None:
    names = [
        "TUNESMITH_DATABSE_URL",
        "TUNESMITH_PORT",
        "tunesmith_port",
        "TUNESMITH_TEST_X",
        "HOME",
    ]
    assert unknown_variable_warnings(names) == [
        "TUNESMITH_DATABSE_URL is not a setting and has no effect: "
        "did you mean TUNESMITH_DATABASE_URL?"
    ]
    assert "docs/reference/settings.md" in unknown_variable_warnings(["TUNESMITH_Q"])[0]
