"""What no line of the product may do, found in the syntax: SQL out of pieces, secrets compared with ==."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parent.parent / "platform").rglob("*.py"))
STATEMENTS = frozenset({"text", "execute", "exec_driver_sql", "executemany", "executescript", "literal_column"})
SQL = re.compile(r"\b(select|insert|update|delete|alter|create|drop|truncate|pragma|begin|where|set)\b", re.IGNORECASE)
SECRET = re.compile(r"(password|csrf|csrf_token|cookie|secret|credentials?|signature|hmac|token_hash|api_key)$")
OF_KEYS = re.compile(rf"(?:{SECRET.pattern}|token|hash|stored)$")
WHERE_KEYS_ARE = ("key_format.py", "keys.py", "sessions.py", "auth.py", "login.py", "credentials.py", "snapshot.py")
"""Elsewhere a token is a piece of a text, and a hash the name of some bytes."""


def built_sql(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements with a part that is no constant of a module: what stands there may come from a request."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and call.args and _last_name(call.func) in STATEMENTS:
            statement = call.args[0]
            pieces = isinstance(statement, ast.JoinedStr | ast.BinOp) or _last_name(statement) in ("format", "join")
            if pieces and SQL.search(ast.unparse(statement)) and any(map(_varies, ast.walk(statement))):
                yield call


def _varies(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and not node.id.isupper()


def compared_secrets(tree: ast.AST, names: re.Pattern[str]) -> Iterator[ast.AST]:
    """Comparisons that end at the first letter that differs, so that the time they take tells how many were right."""
    for compare in ast.walk(tree):
        if isinstance(compare, ast.Compare) and isinstance(compare.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            sides = [compare.left, *compare.comparators]
            harmless = any(isinstance(side, ast.Constant) or _is_column(side) for side in sides)
            found = [side for side in sides if names.search(_last_name(side))]
            if found and not harmless and not _of_itself(sides):
                yield compare


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Call():
            return _last_name(node.func)
    return ""


def _is_column(node: ast.AST) -> bool:
    """Of a table, which the database compares; or a constant in capitals."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
    return isinstance(node, ast.Name) and node.id.isupper()


def _of_itself(sides: list[ast.expr]) -> bool:
    """A text beside a form of the same text, such as without its spaces."""
    first, second = (ast.unparse(side) for side in sides[:2])
    return second.startswith(f"{first}.")


def found_in(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    names = OF_KEYS if path.name in WHERE_KEYS_ARE and {"registry", "web"} & set(path.parts) else SECRET
    nodes = [*built_sql(tree), *compared_secrets(tree, names)]
    return [f"{path}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}" for node in nodes]


def test_no_statement_is_made_of_pieces_and_no_secret_is_compared_by_letters() -> None:
    assert len(SOURCES) > 300
    assert [line for path in SOURCES for line in found_in(path)] == []


@pytest.mark.parametrize(
    "code",
    [
        "session.execute(text(f\"SELECT * FROM keys WHERE prefix = '{prefix}'\"))",
        "connection.exec_driver_sql('DELETE FROM uploads WHERE sha256 = ' + sha256)",
        "text('SELECT 1 WHERE name = {}'.format(name))",
        "connection.execute('UPDATE keys SET name = %s' % name)",
    ],
)
def test_a_statement_of_pieces_is_found(code: str) -> None:
    assert list(built_sql(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "token_hash(secret, token) == stored",
        "sent != session.csrf_token",
        "password in known",
        "if self.password == given.strip(): pass",
    ],
)
def test_a_comparison_of_secrets_is_found(code: str) -> None:
    assert list(compared_secrets(ast.parse(code), OF_KEYS))


HARMLESS = """
password != password.strip()
select(Key).where(Key.token_hash == hashed(token))
" " in token
row.name == name
form.text(f"scope_{scope}")
connection.execute(f"PRAGMA busy_timeout = {SECONDS * 1000}")
"""


def test_what_is_harmless_is_not() -> None:
    tree = ast.parse(HARMLESS)
    assert not [*compared_secrets(tree, OF_KEYS), *built_sql(tree)]
