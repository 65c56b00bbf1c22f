"""Keeps one engine alive: process, health, restart policy, state machine, control socket, logs.

The resident supervisor imports from this room and from below only, and never typer, rich, pydantic or httpx:
it is handed a finished plan (see spec.py).
"""
