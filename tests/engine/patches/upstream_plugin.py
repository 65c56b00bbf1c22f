"""A pytest plugin for upstream's own server tests: the models that they would download are one local one.

Loaded by name (`-p upstream_plugin`) in a process of its own, inside a copy of those tests: `utils` is theirs.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from typing import Any

sys.modules.setdefault("wget", types.ModuleType("wget"))  # they import it for a download that needs a network
import utils  # noqa: E402

MODEL = os.environ["KVLAUNCH_LOCAL_MODEL"]


def _local(make: Callable[[], Any]) -> Callable[[], Any]:
    def preset() -> Any:
        server = make()
        if server.model_hf_repo:
            server.model_file, server.model_hf_repo, server.model_hf_file = MODEL, None, None
        return server

    return preset


for _name, _method in list(vars(utils.ServerPreset).items()):
    if _name == "load_all":
        utils.ServerPreset.load_all = staticmethod(lambda: None)
    elif isinstance(_method, staticmethod):
        setattr(utils.ServerPreset, _name, staticmethod(_local(_method.__func__)))
