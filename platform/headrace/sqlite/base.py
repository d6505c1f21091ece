"""Chooses the SQLite library, then hands out Django's own backend. Imported by Django when ENGINE is `headrace.sqlite`.

The swap is process-wide on purpose: two SQLite libraries in one process that open the same file drop each other's
POSIX locks, so nothing here may go on using the old one.
"""

import importlib
import importlib.util
import sys

from django.core.exceptions import ImproperlyConfigured

from headrace.sqlite import MINIMUM_VERSION

# Without the wheel (it is made for Linux only) Python's own library serves, if it is new enough: checked below.
if importlib.util.find_spec("pysqlite3") is not None:
    sys.modules["sqlite3"] = importlib.import_module("pysqlite3")
    sys.modules["sqlite3.dbapi2"] = importlib.import_module("pysqlite3.dbapi2")

from django.db.backends.sqlite3.base import Database, DatabaseWrapper

if Database.sqlite_version_info < MINIMUM_VERSION:
    raise ImproperlyConfigured(
        f"SQLite {Database.sqlite_version} may corrupt the database (WAL-reset bug). At least "
        f"{'.'.join(map(str, MINIMUM_VERSION))} is needed -> pip install 'pysqlite3>=0.6.1', or set HEADRACE_DATABASE_URL to PostgreSQL."
    )

__all__ = ["Database", "DatabaseWrapper"]
