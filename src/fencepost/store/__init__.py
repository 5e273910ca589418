"""The only place that knows PostgreSQL. Statements are in `sql/`, the schema in `migrations/`."""
