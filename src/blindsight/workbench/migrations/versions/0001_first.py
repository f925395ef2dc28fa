"""Create or complete the tables of keys, sessions and jobs.

Databases of earlier versions, which had no schema version, already have these tables: up to
version 0.2 their names contain "studio", and some lack columns that were added later. This script
brings all of them to the same schema.
"""

from __future__ import annotations

import sqlalchemy as sql
from alembic import op

__all__: list[str] = []

revision = "0001"
down_revision = None


def _tables() -> dict[str, list[sql.Column[object]]]:
    return {
        "keys": [
            sql.Column("name", sql.Text(), primary_key=True),
            sql.Column("role", sql.Text(), nullable=False),
            sql.Column("digest", sql.Text(), nullable=False, unique=True),
            sql.Column("made", sql.Text(), nullable=False),
            sql.Column("revoked", sql.Text()),
        ],
        "sessions": [
            sql.Column("digest", sql.Text(), primary_key=True),
            sql.Column("name", sql.Text(), nullable=False),
            sql.Column("until", sql.Float(), nullable=False),
        ],
        "jobs": [
            sql.Column("id", sql.Text(), primary_key=True),
            sql.Column("number", sql.Integer(), nullable=False, index=True),
            sql.Column("kind", sql.Text(), nullable=False),
            sql.Column("arguments", sql.Text(), nullable=False),
            sql.Column("asker", sql.Text(), nullable=False),
            sql.Column("state", sql.Text(), nullable=False, index=True),
            sql.Column("done", sql.Integer(), nullable=False),
            sql.Column("total", sql.Integer(), nullable=False),
            sql.Column("note", sql.Text(), nullable=False),
            sql.Column("result", sql.Text()),
            sql.Column("attempts", sql.Integer(), nullable=False),
            sql.Column("made", sql.Text(), nullable=False),
            sql.Column("ended", sql.Text()),
            sql.Column("runner", sql.Text()),
            sql.Column("lease", sql.Float()),
        ],
    }


def upgrade() -> None:
    """Rename or create the tables, and add missing columns."""
    for name, columns in _tables().items():
        table, former = f"blindsight_workbench_{name}", f"blindsight_studio_{name}"
        present = set(sql.inspect(op.get_bind()).get_table_names())
        if former in present and table not in present:
            op.rename_table(former, table)
        elif table not in present:
            op.create_table(table, *columns)
            continue
        existing = {column["name"] for column in sql.inspect(op.get_bind()).get_columns(table)}
        for column in columns:
            if column.name not in existing:
                op.add_column(table, sql.Column(column.name, column.type))


def downgrade() -> None:
    """Refuse: an older program must not write into a newer database."""
    raise NotImplementedError("restore the backup that was made before the upgrade")
