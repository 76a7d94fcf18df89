"""keys and tenants have quotas, keys may be for some adapters only

Revision: 0008, follows 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent", "tokens_per_day")
TABLES = ("api_keys", "tenants")


def upgrade() -> None:
    for table in TABLES:
        for limit in LIMITS:
            op.add_column(table, sa.Column(limit, sa.BigInteger()))
    op.add_column("api_keys", sa.Column("adapters", sa.JSON()))


def downgrade() -> None:
    with op.batch_alter_table("api_keys") as keys:
        keys.drop_column("adapters")
    for name in TABLES:
        with op.batch_alter_table(name) as table:
            for limit in LIMITS:
                table.drop_column(limit)
