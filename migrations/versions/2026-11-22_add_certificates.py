"""certificates of what serving costs an adapter's answers, and the prompts they are measured on

Revision: 0004, follows 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

REFERENCE = "fk_adapters_prompts_digest_golden_prompts"


def upgrade() -> None:
    op.create_table(
        "golden_prompts",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("prompts", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    with op.batch_alter_table("adapters") as adapters:
        adapters.add_column(sa.Column("prompts_digest", sa.String(64)))
        adapters.create_foreign_key(REFERENCE, "golden_prompts", ["prompts_digest"], ["digest"])
    op.create_table(
        "certificates",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("adapter_digest", sa.String(64), sa.ForeignKey("artifacts.digest"), index=True),
        sa.Column("prompts_digest", sa.String(64), sa.ForeignKey("golden_prompts.digest")),
        sa.Column("state", sa.String(15), nullable=False, index=True),
        sa.Column("coverage_digest", sa.String(64)),
        sa.Column("agreement", sa.Double()),
        sa.Column("document", sa.JSON()),
        sa.Column("problem", sa.Text()),
        sa.Column("worker", sa.String(32)),
        sa.Column("beat_at", sa.DateTime(timezone=True)),
        sa.Column("progress", sa.Double(), nullable=False),
        sa.Column("requested_by", sa.String(127), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
    )


def downgrade() -> None:
    op.drop_table("certificates")
    with op.batch_alter_table("adapters") as adapters:
        adapters.drop_constraint(REFERENCE, type_="foreignkey")
        adapters.drop_column("prompts_digest")
    op.drop_table("golden_prompts")
