"""aliases know that they were rolled back, so that doing it again changes nothing

Revision: 0014, follows 0013
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("aliases") as aliases:
        aliases.add_column(sa.Column("rolled_back", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("aliases") as aliases:
        aliases.alter_column("rolled_back", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("aliases") as aliases:
        aliases.drop_column("rolled_back")
