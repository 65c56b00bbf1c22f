"""kvlaunch: one TOML profile in, a running, right-sized, supervised long-context server out."""

__version__ = "0.1.0"
