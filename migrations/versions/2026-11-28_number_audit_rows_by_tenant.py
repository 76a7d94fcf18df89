"""audit rows have a number within their tenant: ids count those of all

Revision: 0018, follows 0017
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

AUDIT = sa.table(
    "audit",
    sa.column("id", sa.BigInteger()),
    sa.column("tenant_id", sa.Integer()),
    sa.column("number", sa.BigInteger()),
)


def upgrade() -> None:
    with op.batch_alter_table("audit") as audit:
        audit.add_column(sa.Column("number", sa.BigInteger()))
    number_rows()
    with op.batch_alter_table("audit") as audit:
        audit.alter_column("number", existing_type=sa.BigInteger(), nullable=False)
        audit.create_unique_constraint("uq_audit_tenant_id_number", ["tenant_id", "number"])


def downgrade() -> None:
    with op.batch_alter_table("audit") as audit:
        audit.drop_constraint("uq_audit_tenant_id_number", type_="unique")
        audit.drop_column("number")


def number_rows() -> None:
    place = sa.func.row_number().over(partition_by=AUDIT.c.tenant_id, order_by=AUDIT.c.id)
    numbered = sa.select(AUDIT.c.id, place.label("number")).subquery()
    own = sa.select(numbered.c.number).where(numbered.c.id == AUDIT.c.id).scalar_subquery()
    op.execute(AUDIT.update().values(number=own))
