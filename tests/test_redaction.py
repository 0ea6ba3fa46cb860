"""Credentials of a user's URI are left out of every text, and what is none is left in."""

import json

import pytest

from autotune.errors import TableError, UsageError, one_line
from autotune.redaction import redacted, secrets_in

SECRET = "hU/9+x4Zq="


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://KEY:SECRET@bucket/tables: gone", "s3://***@bucket/tables: gone"),
        (f"s3://KEY:{SECRET}@bucket/a", "s3://***@bucket/a"),
        ("/home/s3:/KEY:SECRET@bucket", "/home/s3:/***@bucket"),
        ("tables='abfs://KEY@account' is", "tables='abfs://***@account' is"),
        ("s3://K:SE?x=C@b/t", "s3://***@b/t"),
        ("s3://b/t?region=eu&access_key=A&secret_key=B%2F: no", "s3://b/t?region=eu&access_key=***&secret_key=***: no"),
        ("https://h/t?X-Amz-Signature=ab&se=1)", "https://h/t?X-Amz-Signature=***&se=***)"),
        ("s3://b?endpoint_override=http%3A%2F%2Fu%3Ap%40h", "s3://b?endpoint_override=***"),
        ("AWS_SECRET_ACCESS_KEY=abc, region", "AWS_SECRET_ACCESS_KEY=***, region"),
        ("s3//KEY:SECRET@bucket/a: no tables there", "s3//***@bucket/a: no tables there"),
        ("/home/me/s3/KEY:SE/CR@bucket is not there", "/home/me/s3/***@bucket is not there"),
        ('{"into": "s3://K:S@b?sig=x"}', '{"into": "s3://***@b?sig=***"}'),
    ],
)
def test_credentials_are_left_out(text: str, expected: str) -> None:
    assert redacted(text) == expected
    assert redacted(expected) == expected


@pytest.mark.parametrize("named", ["s3://b/p?session_token=T1234", "AWS_SECRET_ACCESS_KEY=T1234", "s3://K:T1234@b"])
def test_what_is_left_of_json_is_json(named: str) -> None:
    message = f'cannot open "{named}": "no such bucket"'
    found = json.loads(redacted(json.dumps({"message": message, "next": 1})))
    assert (found["message"].endswith('": "no such bucket"'), "T1234" in str(found), found["next"]) == (True, False, 1)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/tables",
        "s3/me@work",
        "logs3/a:b@c",
        "http://localhost:5000/a b@c",
        "config='BLOCK_Q=64' a:/b",
        "file:///home/me@work/tables",
    ],
)
def test_what_is_no_credential_is_left_in(text: str) -> None:
    assert redacted(text) == text


def test_secrets_are_found_as_written_and_decoded() -> None:
    found = secrets_in("s3://MYKEY:SE%2FCR@b/x?session_token=a%2Bbcd&region=us-east-1&flag=1")
    assert found == {"MYKEY", "SE%2FCR", "SE/CR", "a%2Bbcd", "a+bcd"}
    assert redacted("no SE/CR of MYKEY", found) == "no *** of ***"


def test_a_colon_that_was_left_out_hides_no_secret() -> None:
    assert secrets_in("s3//MYKEY:SECRET@b/x") == secrets_in("/work/s3/MYKEY:SECRET@b/x") == {"MYKEY", "SECRET"}


def test_errors_hold_none() -> None:
    assert str(UsageError("uri='s3://K:S@b' is refused")) == "uri='s3://***@b' is refused"
    assert str(TableError(f"s3://KEY:{SECRET}@b")) == "s3://***@b"
    assert one_line(ValueError("Cannot parse 's3://K:S@b'")) == "ValueError: Cannot parse 's3://***@b'"
