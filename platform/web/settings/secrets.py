"""Secrets among the settings: where they are read from, which are refused, and what is shown instead of them."""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

SECRETS: Final = ("admin_password", "api_key", "database_password")
"""Each of them may come from the file that the setting of the same name with `_file` names."""
WEAK_WORDS: Final = (
    *("password", "passw0rd", "changeme", "change-me", "change_me", "administrator", "loraplex", "postgres"),
    *("12345678", "sk-1234", "qwertyui", "example", "your-", "your_", "letmein", "secret"),
)
SAMPLE_WORDS: Final = (
    *("password", "passwd", "secret", "token", "api", "key", "admin", "user", "root", "grafana", "dashboard", "change"),
    *("replace", "please", "default", "example", "sample", "test", "demo", "dummy", "super", "welcome", "letmein"),
    *("iloveyou", "required", "needed"),
)
ROWS: Final = ("abcdefghijklmnopqrstuvwxyz", "01234567890", "qwertyuiop", "qwertzuiop", "asdfghjkl", "zxcvbnm")
RUNS: Final = tuple(row[at : at + 3] for way in ROWS for row in (way, way[::-1]) for at in range(len(row) - 2))
SAMPLE_PARTS: Final = re.compile("|".join((*SAMPLE_WORDS, *RUNS, r"[\s._-]+")))
"""What samples are put together from."""
LOOKALIKES: Final = str.maketrans("@$03157", "asoeist")
LEAST_CHARACTERS: Final = 5
ENGINE_FOLDER: Final = Path("/run/secrets")
"""Where container engines mount secrets, each for one container alone, by default readable by whoever is in it."""
MAX_SECRET_BYTES: Final = 4096
SECRET_OPTION: Final = re.compile(r"([?&]\w*(?:password|passwd|secret|token)=)[^&]*", re.IGNORECASE)
MASK: Final = "********"
MAKE_ONE: Final = "make one with: openssl rand -hex 24"


def with_secrets_of_files(values: dict[str, Any]) -> dict[str, Any]:
    """The values with the secrets of `*_file` settings. ValueError says which file cannot be used, and why."""
    for name in SECRETS:
        file = values.get(f"{name}_file")
        if file is not None and values.get(name) is not None:
            raise ValueError(f"{name} and {name}_file are both set: use one of them")
        if file is not None:
            values = values | {name: read_secret(f"{name}_file", Path(file))}
    return values


def read_secret(setting: str, file: Path) -> str:
    """The text of a file that not everyone may use."""
    try:
        text = secret_text(file)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
    if file.stat().st_mode & 0o006 and not file.resolve().is_relative_to(ENGINE_FOLDER):
        raise ValueError(f"{setting}: everyone on this machine can use {file}. Restrict it: chmod 600 {file}")
    return text


def secret_text(file: Path) -> str:
    """The file's text without white space around it."""
    try:
        data = file.read_bytes()
    except OSError as error:
        remedy = "Name a file that this user can read, or give this user read access"
        raise ValueError(f"{file} cannot be read: {error.strerror}. {remedy}") from None
    if not data.strip():
        raise ValueError(f"{file} is empty. Put the secret into it; {MAKE_ONE}")
    if len(data) > MAX_SECRET_BYTES:
        raise ValueError(f"{file} has {len(data)} bytes, too many for a secret. Name another file")
    try:
        return data.decode().strip()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8 text. {MAKE_ONE.capitalize()}") from None


def refuse_weak(name: str, secret: SecretStr | None, check: Callable[[str], str], made_for_you: bool = True) -> None:
    """`made_for_you`: without this setting the first start makes a secret by itself."""
    if secret is None:
        return
    try:
        text = check(secret.get_secret_value())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if is_sample(text):
        unset = f"Leave LORAPLEX_{name.upper()} unset and one is made at the first start, or " if made_for_you else ""
        remedy = unset + MAKE_ONE
        raise ValueError(f"{name} is easily guessed. {remedy[0].upper()}{remedy[1:]}")


def is_weak(secret: str, check: Callable[[str], str]) -> bool:
    """Whether it is short, or easily guessed."""
    try:
        return is_sample(check(secret))
    except ValueError:
        return True


def is_sample(secret: str) -> bool:
    """Whether it stands in some example, or has hardly a letter beside the words and runs that examples are made of."""
    lower = secret.lower()
    if any(lower.startswith(word) for word in WEAK_WORDS):
        return True
    return any(len(set(SAMPLE_PARTS.sub("", text))) < LEAST_CHARACTERS for text in (lower, lower.translate(LOOKALIKES)))


def refuse_open_file(file: Path, values: Mapping[str, Any], secrets: Collection[str] = SECRETS) -> None:
    """A settings file is as secret as what it holds, and whoever may write it says what is served."""
    if not values:
        return
    mode, held = file.stat().st_mode, [name for name in secrets if name in values]
    if mode & 0o002:
        raise ValueError(f"everyone on this machine can change {file}. Restrict it: chmod o-w {file}")
    if mode & 0o004 and held:
        raise ValueError(
            f"{file} holds {held[0]}, and everyone on this machine can read it. Restrict it: chmod 600 {file}"
        )


def mask_url(url: str) -> str:
    """The URL without passwords, whether they stand before the host or among the options."""
    scheme, separator, rest = url.partition("://")
    rest = SECRET_OPTION.sub(rf"\g<1>{MASK}", rest)
    credentials, at, location = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{scheme}{separator}{user}{colon}{MASK if colon else ''}{at}{location}"
