"""certificates that failed by a fault of the server keep its cause, for the operator alone

Revision: 0015, follows 0014
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("certificates") as certificates:
        certificates.add_column(sa.Column("cause", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("certificates") as certificates:
        certificates.drop_column("cause")
