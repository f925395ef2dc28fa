"""The script by which alembic changes the schema, on the connection that `Database` gives it.

It is not run from a configuration file: the workbench upgrades its database when it opens it, in
one transaction, so that a crash leaves the old schema. `blindsight workbench migrate`
does the same without starting the workbench.
"""

from __future__ import annotations

from alembic import context

from blindsight.workbench.infra.database import METADATA, VERSION_TABLE

__all__: list[str] = []


def upgrade_on_given_connection() -> None:
    """Run the migrations that were not applied to the database yet."""
    connection = context.config.attributes.get("connection")
    if connection is None:
        raise SystemExit(
            "The workbench's schema is upgraded by `blindsight workbench migrate`, not by the "
            "alembic command."
        )
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        version_table=VERSION_TABLE,
        transactional_ddl=True,
        # SQLite cannot change a column in place; alembic then copies the table.
        render_as_batch=connection.dialect.name == "sqlite",
    )
    # Not `begin_transaction`: the transaction, with the lock in it, belongs to the caller.
    context.run_migrations()


if hasattr(context, "config"):  # alembic runs this; otherwise it is only imported
    upgrade_on_given_connection()
