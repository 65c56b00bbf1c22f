"""Have the launch planned anew, by the command line that planned it: something is to be given up, or taken back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from launcher.supervise.spec import LaunchSpec

_LIMIT = 120.0


class CannotReplan(Exception):
    """Why, in words."""


async def replan(spec: LaunchSpec, given_up: tuple[str, ...]) -> LaunchSpec:
    """The same instance without the things named, planned with the memory that is free now."""
    command = [*spec.replan, *(word for step in given_up for word in ("--give-up", step))]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=spec.directory or None,
        )
        out, err = await asyncio.wait_for(process.communicate(), _LIMIT)
        if process.returncode != 0:
            raise CannotReplan(err.decode(errors="replace").strip()[-400:] or f"exit code {process.returncode}")
        fresh = LaunchSpec.from_json(json.loads(out))
    except (OSError, ValueError, TimeoutError) as error:
        raise CannotReplan(str(error) or type(error).__name__) from None
    # where it lives and how it was started are not the plan's to change
    return replace(
        fresh,
        detached=spec.detached,
        replan=spec.replan,
        socket=spec.socket,
        state_dir=spec.state_dir,
        log_dir=spec.log_dir,
    )
