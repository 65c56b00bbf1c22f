"""The engine: pinned source, patch series, build, verification, store, capability, options, log lines."""
