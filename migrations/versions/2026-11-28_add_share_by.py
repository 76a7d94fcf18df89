"""routes share out callers or requests; who asked an adapter lately is found at once; changes can be undone

Revision: 0017, follows 0016
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("aliases") as aliases:
        aliases.add_column(sa.Column("share_by", sa.String(7), nullable=False, server_default="caller"))
    with op.batch_alter_table("aliases") as aliases:
        aliases.alter_column("share_by", server_default=None)
    op.create_index("ix_usage_adapter", "usage", ["tenant_id", "adapter_name", "day"])
    op.create_table(
        "undos",
        sa.Column("adapter_id", sa.Integer(), sa.ForeignKey("adapters.id"), primary_key=True, autoincrement=False),
        sa.Column("change", sa.String(16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False, index=True),
        sa.Column("actor", sa.String(127), nullable=False),
        sa.Column("action", sa.String(63), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("undos")
    op.drop_index("ix_usage_adapter", "usage")
    with op.batch_alter_table("aliases") as aliases:
        aliases.drop_column("share_by")
