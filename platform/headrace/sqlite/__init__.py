"""Database backend `headrace.sqlite`: Django's SQLite backend on a library without the WAL-reset bug.

The SQLite inside Python's own module may be years old (3.7.0 to 3.51.2 can corrupt a WAL database in a rare race of
checkpoint and commit; fixed in 3.51.3). The `pysqlite3` wheel carries a current one. `base.py` is the one place where
the module is chosen.
"""

MINIMUM_VERSION = (3, 51, 3)
