"""What must survive: tables, migrations and queries over SQLite or PostgreSQL. SQLAlchemy lives here only."""
