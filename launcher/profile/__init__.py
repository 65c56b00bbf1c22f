"""The TOML profile: its schema, its loader, and where every value stands in the file."""
