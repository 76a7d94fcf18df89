"""Tokenizers that adapters bring: kept by their content, meant by versions, no part of an adapter's identity."""

from alembic import command
from alembic.config import Config
from sqlalchemy import inspect, text

from loraplex.registry.adapters.adapters import AddedVersion
from loraplex.registry.database.database import open_engine
from loraplex.registry.database.migrate import FOLDER, upgrade
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer, AddedToken
from loraplex.registry.files.sweep import sweep
from loraplex.registry.registry import Registry

from ..helpers import CONFIG, FINGERPRINT, passing_report, put, sha256, snapshot
from .test_sweep import NOW

OWN = AdapterTokenizer(
    [AddedToken(300, "<tool>", special=True), AddedToken(301, "Zürich 😀")], "{{ messages }}", {"eos_token": "<tool>"}
)


def add(registry: Registry, name: str, tokenizer: AdapterTokenizer | None, weights: bytes = b"one") -> AddedVersion:
    return registry.adapters.add_version(
        name,
        put(registry.store, CONFIG),
        put(registry.store, weights),
        passing_report(sha256(weights)),
        base_fingerprint=FINGERPRINT,
        actor="user:admin",
        tokenizer=tokenizer,
    )


def test_it_comes_back_as_it_was(registry: Registry) -> None:
    digest = add(registry, "sql", OWN).version.tokenizer_digest
    assert digest == OWN.digest
    assert registry.tokenizers.get(digest) == OWN


def test_the_digest_follows_every_part() -> None:
    others = [
        AdapterTokenizer(),
        AdapterTokenizer(OWN.added_tokens, OWN.chat_template),
        AdapterTokenizer(OWN.added_tokens, None, OWN.named_tokens),
        AdapterTokenizer(OWN.added_tokens[:1], OWN.chat_template, OWN.named_tokens),
        AdapterTokenizer([AddedToken(300, "<tool>"), OWN.added_tokens[1]], OWN.chat_template, OWN.named_tokens),
    ]
    assert len({OWN.digest, *(other.digest for other in others)}) == len(others) + 1


def test_the_same_weights_with_another_tokenizer_are_another_version_of_the_same_adapter(registry: Registry) -> None:
    first, again, bare, back = (add(registry, "sql", tokenizer) for tokenizer in (OWN, OWN, None, OWN))
    assert [added.created for added in (first, again, bare, back)] == [True, False, True, True]
    assert [added.version.number for added in (first, again, bare, back)] == [1, 1, 2, 3]
    assert len({added.version.digest for added in (first, bare, back)}) == 1
    assert len(snapshot(registry).desired()) == 1


def test_a_name_switches_its_tokenizer_with_its_weights(registry: Registry) -> None:
    add(registry, "sql", OWN)
    add(registry, "sql", None, b"two")
    meant = {name: snapshot(registry).resolve(name) for name in ("sql", "sql@1", "sql@2")}
    digests = {name: resolved.tokenizer_digest for name, resolved in meant.items() if resolved is not None}
    assert digests == {"sql": None, "sql@1": OWN.digest, "sql@2": None}
    registry.adapters.set_enabled("sql@2", False, actor="user:admin")
    resolved = snapshot(registry).resolve("sql")
    assert resolved is not None
    assert (resolved.digest, resolved.tokenizer_digest) == (sha256(b"one"), OWN.digest)


def test_the_sweep_leaves_it(registry: Registry) -> None:
    add(registry, "sql", OWN)
    registry.adapters.remove("sql", actor="user:admin")
    sweep(registry.database, registry.store, NOW)
    assert registry.tokenizers.get(OWN.digest) == OWN


def test_versions_of_an_older_release_use_the_bases(empty_url: str) -> None:
    """Rows of the first schema live through the migration, and through the way back."""
    migrate(empty_url, "0001")
    engine = open_engine(empty_url)
    with engine.begin() as connection:
        for statement in OLD_ROWS:
            connection.execute(text(statement))
    upgrade(empty_url)
    with engine.connect() as connection:
        query = "SELECT number, tokenizer_digest, vocab_size FROM adapter_versions JOIN artifacts USING (digest)"
        assert list(connection.execute(text(query))) == [(1, None, 0)]
    migrate(empty_url, "0001", back=True)
    with engine.connect() as connection:
        assert list(connection.execute(text("SELECT number, digest FROM adapter_versions"))) == [(1, "d" * 64)]
    assert "tokenizers" not in inspect(engine).get_table_names()
    engine.dispose()


MOMENT = "'2026-01-01 00:00:00+00:00'"
OLD_ROWS = [
    "INSERT INTO artifacts (digest, config_sha256, config_size, weights_sha256, weights_size, peft_type, rank, alpha,"
    f" target_modules, parameters, base_model, created_at) VALUES ('{'d' * 64}', '{'c' * 64}', 1, '{'e' * 64}', 1,"
    f" 'LORA', 8, 16.0, '[]', 1, 'demo', {MOMENT})",
    "INSERT INTO adapters (id, tenant_id, name, enabled, pinned, created_at, created_by)"
    f" VALUES (1, 1, 'sql', true, false, {MOMENT}, 'cli')",
    "INSERT INTO adapter_versions (id, adapter_id, number, digest, base_fingerprint, report, uploaded_by, created_at,"
    f" enabled, pinned) VALUES (1, 1, 1, '{'d' * 64}', '{'f' * 64}', '{{}}', 'cli', {MOMENT}, true, false)",
]


def migrate(url: str, revision: str, back: bool = False) -> None:
    engine = open_engine(url, foreign_keys=False)
    with engine.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(FOLDER))
        config.attributes["connection"] = connection
        (command.downgrade if back else command.upgrade)(config, revision)
    engine.dispose()
