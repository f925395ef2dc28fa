"""Add people, rights per data set, the access log, and the history of jobs."""

from __future__ import annotations

import json

import sqlalchemy as sql
from alembic import op

__all__: list[str] = []

revision = "0002"
down_revision = "0001"
_PREFIX = "blindsight_workbench_"
_FIRST_HASH = "0" * 64


def upgrade() -> None:
    """Add tables and columns, and fill in what follows from existing rows."""
    op.add_column(_PREFIX + "sessions", sql.Column("id_token", sql.Text()))
    op.add_column(_PREFIX + "jobs", sql.Column("purpose", sql.Text()))
    op.add_column(_PREFIX + "jobs", sql.Column("dataset", sql.Text()))
    op.create_index(f"ix_{_PREFIX}jobs_dataset", _PREFIX + "jobs", ["dataset"])
    _name_data_sets_of_jobs()
    op.create_table(
        _PREFIX + "people",
        sql.Column("name", sql.Text(), primary_key=True),
        sql.Column("issuer", sql.Text(), nullable=False),
        sql.Column("subject", sql.Text(), nullable=False),
        sql.Column("label", sql.Text(), nullable=False),
        sql.Column("groups", sql.Text(), nullable=False),
        sql.Column("seen", sql.Text(), nullable=False),
        sql.Column("revoked", sql.Text()),
        sql.UniqueConstraint("issuer", "subject", name=_PREFIX + "people_account"),
    )
    op.create_table(
        _PREFIX + "grants",
        *(
            sql.Column(name, sql.Text(), primary_key=True)
            for name in ("subject", "kind", "role", "dataset", "release")
        ),
        sql.Column("made", sql.Text(), nullable=False),
        sql.Column("actor", sql.Text(), nullable=False),
    )
    op.create_table(
        _PREFIX + "job_events",
        sql.Column("id", sql.Integer(), primary_key=True),
        sql.Column("job", sql.Text(), nullable=False, index=True),
        sql.Column("time", sql.Text(), nullable=False),
        sql.Column("attempt", sql.Integer(), nullable=False),
        sql.Column("state", sql.Text(), nullable=False),
        sql.Column("note", sql.Text(), nullable=False),
    )
    _make_access_log()


def _name_data_sets_of_jobs() -> None:
    """Copy the data set of each job from its arguments into a column, on which rights depend."""
    jobs = sql.table(
        _PREFIX + "jobs", sql.column("id"), sql.column("arguments"), sql.column("dataset")
    )
    bind = op.get_bind()
    for row in bind.execute(sql.select(jobs.c.id, jobs.c.arguments)).all():
        dataset = json.loads(row.arguments).get("dataset")
        if isinstance(dataset, str):
            bind.execute(sql.update(jobs).where(jobs.c.id == row.id).values(dataset=dataset))


def _make_access_log() -> None:
    table = op.create_table(
        _PREFIX + "access",
        sql.Column("sequence", sql.BigInteger(), primary_key=True, autoincrement=False),
        sql.Column("time", sql.Text(), nullable=False),
        sql.Column("actor", sql.Text(), nullable=False, index=True),
        sql.Column("action", sql.Text(), nullable=False),
        sql.Column("dataset", sql.Text(), nullable=False, index=True),
        *(
            sql.Column(name, sql.Text(), nullable=False)
            for name in ("release", "outcome", "purpose", "previous", "hash")
        ),
    )
    head = op.create_table(
        _PREFIX + "access_head",
        sql.Column("id", sql.Integer(), primary_key=True, autoincrement=False),
        sql.Column("sequence", sql.BigInteger(), nullable=False),
        sql.Column("hash", sql.Text(), nullable=False),
    )
    op.bulk_insert(head, [{"id": 1, "sequence": 0, "hash": _FIRST_HASH}])
    # The database itself refuses to change or delete a record. If somebody removes these triggers
    # first, the chain shows the change.
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE FUNCTION {_PREFIX}append_only() RETURNS trigger AS $$ BEGIN "
            "RAISE EXCEPTION 'the access log is append-only'; END $$ LANGUAGE plpgsql"
        )
        op.execute(
            f"CREATE TRIGGER {_PREFIX}access_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON "
            f"{table.name} FOR EACH STATEMENT EXECUTE FUNCTION {_PREFIX}append_only()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {_PREFIX}access_no_{verb.lower()} BEFORE {verb} ON {table.name} "
            "BEGIN SELECT RAISE(ABORT, 'the access log is append-only'); END"
        )


def downgrade() -> None:
    """Refuse: an older program must not write into a newer database."""
    raise NotImplementedError("restore the backup that was made before the upgrade")
