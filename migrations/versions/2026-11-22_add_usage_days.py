"""the usage ledger's sums of days, so that months are added up in milliseconds

Revision: 0011, follows 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

ACCOUNT = ("tenant_id", "day", "actor", "adapter_digest", "adapter_name")
COUNTS = (
    *("requests", "errors", "unknown", "prompt_tokens", "cached_tokens"),
    *("completion_tokens", "unknown_tokens"),
)


def upgrade() -> None:
    op.create_table(
        "usage_days",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("actor", sa.String(127), nullable=False),
        sa.Column("adapter_digest", sa.String(64), nullable=False),
        sa.Column("adapter_name", sa.String(600), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS),
        sa.UniqueConstraint(*ACCOUNT),
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    account, sums = ", ".join(ACCOUNT), ", ".join(f"SUM({name})" for name in COUNTS)
    op.execute(
        f"INSERT INTO usage_days ({account}, {', '.join(COUNTS)}) "
        f"SELECT {account}, {sums} FROM usage GROUP BY {account}"
    )


def downgrade() -> None:
    op.drop_table("usage_days")
