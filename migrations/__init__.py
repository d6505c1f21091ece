"""Database migrations, one package per Django app (settings.MIGRATION_MODULES)."""
