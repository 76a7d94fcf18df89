"""versions may have a serving profile

Revision: 0012, follows 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

REFERENCE = "fk_adapter_versions_profile_digest_serving_profiles"
INDEX = "ix_adapter_versions_profile_digest"


def upgrade() -> None:
    op.create_table(
        "serving_profiles",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    with op.batch_alter_table("adapter_versions") as versions:
        versions.add_column(sa.Column("profile_digest", sa.String(64)))
        versions.create_foreign_key(REFERENCE, "serving_profiles", ["profile_digest"], ["digest"])
        versions.create_index(INDEX, ["profile_digest"])


def downgrade() -> None:
    with op.batch_alter_table("adapter_versions") as versions:
        versions.drop_index(INDEX)
        versions.drop_constraint(REFERENCE, type_="foreignkey")
        versions.drop_column("profile_digest")
    op.drop_table("serving_profiles")
