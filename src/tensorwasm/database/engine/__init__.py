"""The database engine: opening SQLite or PostgreSQL, migrations, and the executor of reads and grouped writes."""
