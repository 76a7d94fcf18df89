"""responses are kept for those that follow them

Revision: 0020, follows 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_responses",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("actor", sa.String(127), nullable=False),
        sa.Column("previous_id", sa.String(64)),
        sa.Column("items", sa.LargeBinary(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False, index=True),
    )
    op.create_index("ix_stored_responses_tenant", "stored_responses", ["tenant_id", "used_at"])


def downgrade() -> None:
    op.drop_table("stored_responses")
