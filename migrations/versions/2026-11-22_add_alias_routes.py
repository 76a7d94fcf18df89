"""aliases route weighted shares of their callers to candidates, under a guard

Revision: 0013, follows 0012
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

REFERENCE = "fk_aliases_previous_id_adapter_versions"


def upgrade() -> None:
    with op.batch_alter_table("aliases") as aliases:
        aliases.add_column(sa.Column("previous_id", sa.Integer()))
        aliases.add_column(sa.Column("guard", sa.JSON()))
        aliases.add_column(sa.Column("trip", sa.JSON()))
        aliases.create_foreign_key(REFERENCE, "adapter_versions", ["previous_id"], ["id"])
    op.create_table(
        "alias_candidates",
        sa.Column("alias_id", sa.Integer(), sa.ForeignKey("aliases.id"), primary_key=True, autoincrement=False),
        sa.Column(
            "version_id", sa.Integer(), sa.ForeignKey("adapter_versions.id"), primary_key=True, autoincrement=False
        ),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("shadow", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("alias_candidates")
    with op.batch_alter_table("aliases") as aliases:
        aliases.drop_constraint(REFERENCE, type_="foreignkey")
        aliases.drop_column("trip")
        aliases.drop_column("guard")
        aliases.drop_column("previous_id")
