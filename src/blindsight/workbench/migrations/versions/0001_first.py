"""Keys, sessions and jobs, as before schemas had versions.

Databases of earlier versions come here with their tables in place: those of version 0.2 and before
are called "studio", and some lack the columns that were added by hand later. This script brings
every one of them to the same schema.
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
    """Rename, create, and add the columns that are missing."""
    for name, columns in _tables().items():
        table, former = f"blindsight_workbench_{name}", f"blindsight_studio_{name}"
        present = set(sql.inspect(op.get_bind()).get_table_names())
        if former in present and table not in present:
            op.rename_table(former, table)
        elif table not in present:
            op.create_table(table, *columns)
            continue
        there = {column["name"] for column in sql.inspect(op.get_bind()).get_columns(table)}
        for column in columns:
            if column.name not in there:
                op.add_column(table, sql.Column(column.name, column.type))


def downgrade() -> None:
    """There is no way back: an older program must not write into a newer database."""
    raise NotImplementedError("restore the backup that was made before the upgrade")
