"""the usage ledger

Revision: 0007, follows 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "usage",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        *account(),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in (
                *("requests", "errors", "unknown", "prompt_tokens", "cached_tokens"),
                *("completion_tokens", "unknown_tokens"),
            )
        ),
        sa.UniqueConstraint("tenant_id", "day", "hour", "actor", "adapter_digest", "adapter_name"),
    )
    op.create_index("ix_usage_day", "usage", ["day"])
    op.create_table(
        "usage_writers",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("batch", sa.BigInteger(), nullable=False),
        sa.Column("beat_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_table(
        "open_requests",
        sa.Column("writer", sa.String(32), primary_key=True),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        *account(),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    for table in ("open_requests", "usage_writers", "usage"):
        op.drop_table(table)


def account() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("actor", sa.String(127), nullable=False),
        sa.Column("adapter_digest", sa.String(64), nullable=False),
        sa.Column("adapter_name", sa.String(600), nullable=False),
    )
