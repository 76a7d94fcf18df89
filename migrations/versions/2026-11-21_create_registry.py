"""create the registry

Revision: 0001, the first
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_shared_tables()
    create_people_and_keys()
    create_adapters()
    create_audit()
    add_first_rows()


def downgrade() -> None:
    for table in (
        "audit",
        "aliases",
        "adapter_versions",
        "adapters",
        "artifacts",
        "api_keys",
        "users",
        "secrets",
        "generation",
        "tenants",
    ):
        op.drop_table(table)


def create_shared_tables() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False, unique=True),
        moment("created_at"),
    )
    op.create_table(
        "generation",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="one_row"),
    )
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("value", sa.LargeBinary(), nullable=False),
    )


def create_people_and_keys() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False, unique=True),
        sa.Column("role", sa.String(31), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        moment("password_changed_at"),
        moment("created_at"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("prefix", sa.String(16), nullable=False, unique=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("name", sa.String(127), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        moment("created_at"),
        person("created_by"),
        moment("last_used_at", nullable=True),
        moment("expires_at", nullable=True),
        moment("revoked_at", nullable=True),
        person("revoked_by", nullable=True),
    )


def create_adapters() -> None:
    op.create_table(
        "artifacts",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("config_sha256", sa.String(64), nullable=False, index=True),
        sa.Column("config_size", sa.BigInteger(), nullable=False),
        sa.Column("weights_sha256", sa.String(64), nullable=False, index=True),
        sa.Column("weights_size", sa.BigInteger(), nullable=False),
        sa.Column("peft_type", sa.String(63), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("alpha", sa.Double(), nullable=False),
        sa.Column("target_modules", sa.JSON(), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        moment("created_at"),
        sa.Column("broken", sa.Text()),
    )
    op.create_table(
        "adapters",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id"), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        *desired_state(),
        moment("created_at"),
        person("created_by"),
        *removal(),
        sa.UniqueConstraint("tenant_id", "name"),
    )
    op.create_table(
        "adapter_versions",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("adapter_id", sa.Integer(), sa.ForeignKey("adapters.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), sa.ForeignKey("artifacts.digest"), nullable=False, index=True),
        sa.Column("base_fingerprint", sa.String(64), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        person("uploaded_by"),
        moment("created_at"),
        *desired_state(),
        *removal(),
        sa.UniqueConstraint("adapter_id", "number"),
    )
    op.create_table(
        "aliases",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("adapter_id", sa.Integer(), sa.ForeignKey("adapters.id"), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("version_id", sa.Integer(), sa.ForeignKey("adapter_versions.id"), nullable=False),
        moment("updated_at"),
        person("updated_by"),
        sa.UniqueConstraint("adapter_id", "name"),
    )


def create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        moment("at", index=True),
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id")),
        person("actor"),
        sa.Column("action", sa.String(63), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
    )


def add_first_rows() -> None:
    tenants = sa.table("tenants", sa.column("name", sa.String()), sa.column("created_at", sa.DateTime(timezone=True)))
    op.execute(tenants.insert().values(name="default", created_at=sa.func.current_timestamp()))
    generation = sa.table("generation", sa.column("id", sa.Integer()), sa.column("value", sa.BigInteger()))
    op.execute(generation.insert().values(id=1, value=0))


def moment(name: str, nullable: bool = False, index: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, index=index)


def person(name: str, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.String(127), nullable=nullable)


def desired_state() -> tuple[sa.Column[bool], sa.Column[bool]]:
    return sa.Column("enabled", sa.Boolean(), nullable=False), sa.Column("pinned", sa.Boolean(), nullable=False)


def removal() -> tuple[sa.Column[object], sa.Column[object]]:
    return moment("removed_at", nullable=True), person("removed_by", nullable=True)
