"""Runs, their records as written, and the points of their series.

Tables have the prefix ``attnbench_``, because a PostgreSQL database may be shared.  A unique constraint is on the
digest of an identity: its columns may be null, and nulls are never equal in SQL.
"""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables of the first release."""
    import sqlalchemy as sa
    from alembic import op

    op.create_table(
        "attnbench_runs",
        sa.Column("key", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("suite", sa.Text, nullable=False),
        sa.Column("started", sa.Text, nullable=False),
        sa.Column("machine", sa.Text),
        sa.Column("num_records", sa.Integer, nullable=False),
        sa.Column("outcomes", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        # Last, so that SQLite reads the other columns without it.
        sa.Column("head", sa.LargeBinary, nullable=False),
    )
    op.create_index("attnbench_runs_started", "attnbench_runs", ["started"])
    op.create_table(
        "attnbench_records",
        sa.Column("run", sa.Integer, sa.ForeignKey("attnbench_runs.key"), primary_key=True, autoincrement=False),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "attnbench_environments",
        sa.Column("key", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    names = ("config", "machine", "timer", "l2", "regime", "input", "lock_clocks")
    op.create_table(
        "attnbench_series",
        sa.Column("key", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("workload", "case_id", "backend")),
        *(sa.Column(name, sa.Text) for name in names),
    )
    op.create_table(
        "attnbench_points",
        sa.Column("series", sa.Integer, sa.ForeignKey("attnbench_series.key"), primary_key=True, autoincrement=False),
        sa.Column("run", sa.Integer, sa.ForeignKey("attnbench_runs.key"), primary_key=True, autoincrement=False),
        sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("environment", sa.Integer, sa.ForeignKey("attnbench_environments.key")),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        *(sa.Column(name, sa.Double) for name in ("median_ms", "ci_low_ms", "ci_high_ms", "sm_mhz")),
        sa.Column("num_samples", sa.BigInteger),
        sa.Column("version", sa.Text),
        sa.Column("source_hash", sa.Text),
        # Points of a series are adjacent on disk: one trend is a few pages of a million points.
        sqlite_with_rowid=False,
    )
    op.create_index("attnbench_points_run", "attnbench_points", ["run"])
