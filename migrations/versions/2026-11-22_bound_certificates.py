"""certificates know which tenant asked for them and how often they were begun

Revision: 0005, follows 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

REFERENCE = "fk_certificates_tenant_id_tenants"
INDEX = "ix_certificates_tenant_id"


def upgrade() -> None:
    with op.batch_alter_table("certificates") as certificates:
        certificates.add_column(sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"))
        certificates.add_column(sa.Column("tenant_id", sa.Integer()))
        certificates.create_foreign_key(REFERENCE, "tenants", ["tenant_id"], ["id"])
        certificates.create_index(INDEX, ["tenant_id"])
    with op.batch_alter_table("certificates") as certificates:
        certificates.alter_column("attempts", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("certificates") as certificates:
        certificates.drop_index(INDEX)
        certificates.drop_constraint(REFERENCE, type_="foreignkey")
        certificates.drop_column("tenant_id")
        certificates.drop_column("attempts")
