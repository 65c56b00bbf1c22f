"""Commands: parse, call, render; nothing else."""
