"""certificates are asked for as a server serves, and servers are measured for by those that serve alike

Revision: 0016, follows 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "certifiers",
        sa.Column("serving", sa.String(64), primary_key=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
    )
    with op.batch_alter_table("certificates") as certificates:
        certificates.add_column(sa.Column("serving", sa.String(64), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("certificates") as certificates:
        certificates.drop_column("serving")
    op.drop_table("certifiers")
