"""All runs in one SQL database: SQLite beside the run files, or PostgreSQL (docs/history.md).

The run file is the source of truth.  The history stores its lines unchanged and, ready for queries, what a trend
needs: one row per record and timer, by series.
"""
