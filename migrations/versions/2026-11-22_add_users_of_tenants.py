"""tenants may be disabled, users belong to one, and sessions are rows

Revision: 0006, follows 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

REFERENCE = "fk_users_tenant_id_tenants"
NAME, NAME_OF_TENANT = "uq_users_name", "uq_users_tenant_id_name"


def upgrade() -> None:
    op.add_column("tenants", sa.Column("disabled_at", sa.DateTime(timezone=True)))
    with op.batch_alter_table("users") as users:
        users.add_column(sa.Column("tenant_id", sa.Integer()))
    op.execute("UPDATE users SET tenant_id = (SELECT id FROM tenants WHERE name = 'default')")
    with op.batch_alter_table("users") as users:
        users.alter_column("tenant_id", existing_type=sa.Integer(), nullable=False)
        users.create_foreign_key(REFERENCE, "tenants", ["tenant_id"], ["id"])
        users.drop_constraint(NAME, type_="unique")
        users.create_unique_constraint(NAME_OF_TENANT, ["tenant_id", "name"])
    op.execute("DELETE FROM secrets WHERE name = 'sessions'")
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.String(64), primary_key=True),
        sa.Column("user_id", sa.Integer(), sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False, index=True),
    )


def downgrade() -> None:
    op.drop_table("sessions")
    op.execute("DELETE FROM users WHERE tenant_id <> (SELECT id FROM tenants WHERE name = 'default')")
    with op.batch_alter_table("users") as users:
        users.drop_constraint(NAME_OF_TENANT, type_="unique")
        users.create_unique_constraint(NAME, ["name"])
        users.drop_constraint(REFERENCE, type_="foreignkey")
        users.drop_column("tenant_id")
    with op.batch_alter_table("tenants") as tenants:
        tenants.drop_column("disabled_at")
