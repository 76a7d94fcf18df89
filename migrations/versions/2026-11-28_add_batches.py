"""files that tenants keep here, and batches of requests

Revision: 0019, follows 0018
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENTS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def moment(name: str, nullable: bool = True, index: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, index=index)


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("purpose", sa.String(15), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        moment("created_at", nullable=False),
        sa.Column("created_by", sa.String(127), nullable=False),
        moment("expires_at", index=True),
    )
    op.create_table(
        "batches",
        sa.Column("number", NUMBER, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("tenant_id", sa.Integer(), sa.ForeignKey("tenants.id"), nullable=False, index=True),
        sa.Column("endpoint", sa.String(63), nullable=False),
        sa.Column("input_file_id", sa.String(32), nullable=False, index=True),
        sa.Column("status", sa.String(15), nullable=False, index=True),
        moment("created_at", nullable=False),
        sa.Column("created_by", sa.String(127), nullable=False),
        sa.Column("metadata", sa.JSON()),
        sa.Column("output_seconds", sa.Integer()),
        moment("expires_at", nullable=False),
        *(moment(f"{name}_at") for name in MOMENTS),
        sa.Column("errors", sa.JSON()),
        sa.Column("output_file_id", sa.String(32)),
        sa.Column("error_file_id", sa.String(32)),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("total", "completed", "failed")),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "booked_bytes")
        ),
    )


def downgrade() -> None:
    op.drop_table("batches")
    op.drop_table("files")
