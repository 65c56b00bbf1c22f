"""The profile: a TOML file read strictly, with every fault at its line and column."""
