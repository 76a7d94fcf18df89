"""add invocation tokens

Revision: 0002, of adapters that act on a part of the prompt
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("artifacts", sa.Column("invocation_tokens", sa.JSON()))


def downgrade() -> None:
    with op.batch_alter_table("artifacts") as table:
        table.drop_column("invocation_tokens")
