"""Compose conflicts: one function a rule, grouped by topic; data in, diagnostics out."""
