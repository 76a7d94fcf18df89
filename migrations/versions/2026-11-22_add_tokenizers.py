"""adapters may bring added tokens and a chat template

Revision: 0003, follows 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

REFERENCE = "fk_adapter_versions_tokenizer_digest_tokenizers"


def upgrade() -> None:
    op.create_table(
        "tokenizers",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    with op.batch_alter_table("adapter_versions") as versions:
        versions.add_column(sa.Column("tokenizer_digest", sa.String(64)))
        versions.create_foreign_key(REFERENCE, "tokenizers", ["tokenizer_digest"], ["digest"])
    with op.batch_alter_table("artifacts") as artifacts:
        artifacts.add_column(sa.Column("vocab_size", sa.Integer(), nullable=False, server_default="0"))
    with op.batch_alter_table("artifacts") as artifacts:
        artifacts.alter_column("vocab_size", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("artifacts") as artifacts:
        artifacts.drop_column("vocab_size")
    with op.batch_alter_table("adapter_versions") as versions:
        versions.drop_constraint(REFERENCE, type_="foreignkey")
        versions.drop_column("tokenizer_digest")
    op.drop_table("tokenizers")
