"""All runs in one SQL database: SQLite beside the run files, or PostgreSQL (docs/history.md).

The run file is the truth.  The history keeps its lines to the letter, and beside them, ready for a
question, what a trend needs: one row a record and timer, by series.
"""
