"""audit rows are chained by hashes, those that were there too

Revision: 0009, follows 0008
"""

import hashlib
import json
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

ROOT = "0" * 64
AUDIT = sa.table(
    "audit",
    sa.column("id", sa.BigInteger()),
    sa.column("at", sa.DateTime(timezone=True)),
    sa.column("tenant_id", sa.Integer()),
    sa.column("actor", sa.String()),
    sa.column("action", sa.String()),
    sa.column("subject", sa.String()),
    sa.column("detail", sa.JSON()),
    sa.column("hash", sa.String()),
)
HEAD = sa.table("audit_head", sa.column("id", sa.Integer()), sa.column("last_id", sa.BigInteger()), sa.column("hash"))


def upgrade() -> None:
    with op.batch_alter_table("audit") as audit:
        audit.add_column(sa.Column("hash", sa.String(64)))
    last_id, last = chain_rows()
    with op.batch_alter_table("audit") as audit:
        audit.alter_column("hash", existing_type=sa.String(64), nullable=False)
    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("last_id", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
    )
    op.execute(HEAD.insert().values(id=1, last_id=last_id, hash=last))


def downgrade() -> None:
    op.drop_table("audit_head")
    with op.batch_alter_table("audit") as audit:
        audit.drop_column("hash")


def chain_rows() -> tuple[int, str]:
    """The id and hash of the last one."""
    connection, last_id, last = op.get_bind(), 0, ROOT
    for row in connection.execute(sa.select(AUDIT).order_by(AUDIT.c.id)).all():
        last_id, last = row.id, hash_of(last, row)
        connection.execute(AUDIT.update().where(AUDIT.c.id == row.id).values(hash=last))
    return last_id, last


def hash_of(before: str, row: "sa.Row[object]") -> str:
    content = {
        "id": row.id,
        "at": moment(row.at),
        "tenant_id": row.tenant_id,
        "actor": row.actor,
        "action": row.action,
        "subject": row.subject,
        "detail": row.detail,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()


def moment(at: datetime) -> str:
    """SQLite keeps no zone: it is UTC."""
    aware = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    return aware.isoformat(timespec="microseconds")
