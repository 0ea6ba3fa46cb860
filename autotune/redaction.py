"""Credentials that a user's URI may hold, left out of every text that leaves the process.

A URI holds them as userinfo (``s3://KEY:SECRET@bucket``) and in its query (``?session_token=...``, a signature). What
is no credential by its place is still hidden where it might be one: a text that hides too much is no leak.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, unquote_plus

HIDDEN: Final = "***"
SHOWN_FIELDS: Final = frozenset({"region", "scheme", "endpoint_override"})  # of a query; all other values are hidden
LEAST_SECRET: Final = 4  # characters; shorter ones, such as a flag's, occur in every text

# One slash where the text was a path for a while. An unescaped secret may hold slashes, so that all up to the last @ is
# userinfo where a colon stands before the first slash.
_USERINFO: Final = re.compile(r"([a-z][a-z0-9+.-]*:/+)(?:[^\s/?#@\"]*:[^\s\"]*@|[^\s/?#@\"]+@)", re.IGNORECASE)
# Of a URI whose colon was left out, which is the name of a folder: s3//KEY:SECRET@bucket.
_SCHEME: Final = r"(?<![\w.-])(?:s3a?|gs|gcs|abfss?|hdfs|https?)"
_WITHOUT_COLON: Final = re.compile(rf"({_SCHEME}/+)[^\s/?#@\"]*:[^\s\"]*@", re.IGNORECASE)
_TWO_SLASHES: Final = re.compile(f"{_SCHEME}//", re.IGNORECASE)
_QUERY: Final = re.compile(r"([a-z][a-z0-9+.-]*:/[^\s?]*\?)(\S+)", re.IGNORECASE)
# A backslash before a quote is JSON's: without it, what follows would no longer be a text.
_FIELD: Final = re.compile(r"([^&;=\s'\"]+)=((?:\\(?!\")|[^&;\s'\"<>`)\]}\\])*)")
# Assignments outside a URI, as clients and shells write them.
_NAMED: Final = re.compile(
    r"\b((?:aws_|azure_|google_)?(?:access_key(?:_id)?|secret(?:_access)?_key|session_token|account_key|"
    r"sas_token|password|signature|x-amz-[a-z-]*(?:signature|credential|token)))(=)(?:\\(?!\")|[^&\s,;'\"\\])*(?:\\(?!\")|[^&\s,;:'\"\\])",
    re.IGNORECASE,
)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without the credentials in its URIs, and without these secrets wherever they stand.

    Example:
        >>> redacted("s3://KEY:SECRET@bucket/tables?region=us-east-1&session_token=T: no such bucket")
        's3://***@bucket/tables?region=us-east-1&session_token=***: no such bucket'
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, HIDDEN)
    if "@" in text:
        text = _WITHOUT_COLON.sub(rf"\1{HIDDEN}@", text)
    if ":/" in text:
        text = _USERINFO.sub(rf"\1{HIDDEN}@", text)  # first: a secret may hold a question mark
        text = _QUERY.sub(lambda found: found[1] + _FIELD.sub(_without_value, found[2]), text)
    return _NAMED.sub(rf"\1\2{HIDDEN}", text) if "=" in text else text


def _without_value(found: re.Match[str]) -> str:
    if _is_shown(found[1], found[2]):
        return found[0]
    rest = ":" if found[2].endswith(":") else ""  # of the sentence
    return f"{found[1]}={HIDDEN}{rest}"


def _is_shown(name: str, value: str) -> bool:
    return name.lower() in SHOWN_FIELDS and "@" not in unquote(value)


def lacks_colon(path: str) -> bool:
    """Return True for a local path that is meant as a URI: it begins as one, or holds what a URI's userinfo would."""
    return bool(_TWO_SLASHES.match(path) or _WITHOUT_COLON.search(path))


def secrets_in(uri: str) -> frozenset[str]:
    """Return the credentials of a URI, as it has them and decoded: what a client may repeat in an error."""
    userinfo = _USERINFO.match(uri) or _WITHOUT_COLON.search(uri)
    found = set() if userinfo is None else set(userinfo[0].removeprefix(userinfo[1]).removesuffix("@").split(":", 1))
    fields = (part.partition("=") for part in uri.partition("?")[2].split("&"))
    found |= {value for name, _, value in fields if not _is_shown(name, value)}
    decoded = {decode(each) for each in found for decode in (unquote, unquote_plus)}
    return frozenset(each for each in found | decoded if len(each) >= LEAST_SECRET)
