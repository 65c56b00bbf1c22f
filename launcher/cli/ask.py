"""`ask` and `env`: use a running instance from a shell."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.common import JsonOption, NameArg

if TYPE_CHECKING:
    import httpx

    from launcher.supervise.spec import LaunchSpec

_CURL = "`curl --unix-socket {} http://localhost/v1/models` reaches it; or add a TCP host to serve.host"
_PATIENCE = 600.0  # seconds between two tokens: a long prompt is read in silence


def ask(
    name: NameArg,
    question: Annotated[str, typer.Argument(help="What to ask. `-` reads it from standard input.")],
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", min=1, help="At most so many tokens.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a running instance one question; the answer goes to stdout as it is written."""
    from launcher.errors import EngineRefused

    spec, url = _running(name)
    text = sys.stdin.read() if question == "-" else question
    body: dict[str, object] = {"messages": [{"role": "user", "content": text}], "stream": not as_json}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    client = _client(url, spec)
    try:
        with client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise EngineRefused(f"{spec.name} answered {answer.status_code}: {_message(answer)}")
            if as_json:
                answer.read()
                print(json.dumps({"schema": 1, "answer": answer.json()}))
                return
            for piece in _pieces(answer):
                print(piece, end="", flush=True)
            print()
    except OSError as error:
        raise EngineRefused(f"{spec.name} cannot be reached at {url}: {error}") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpcore"):
            raise
        raise EngineRefused(
            f"{spec.name} broke off: {error or type(error).__name__}",
            help=f"see `kvlaunch status {spec.name}`",
        ) from error


def env(name: NameArg, as_json: JsonOption = False) -> None:
    """Print `export` lines for a shell: eval "$(kvlaunch env NAME)". A key is read from its file, never printed."""
    from launcher.errors import UsageError

    spec, url = _running(name)
    if url.startswith("unix:"):
        raise UsageError(f"{spec.name} serves on {url}, which OPENAI_BASE_URL cannot name", help=_CURL.format(url[5:]))
    base, model = f"{url}/v1", spec.expected.alias or spec.name
    if as_json:
        told = {"OPENAI_BASE_URL": base, "OPENAI_MODEL": model, "api_key_file": spec.api_key_file}
        print(json.dumps({"schema": 1, **told}))
        return
    print(f"export OPENAI_BASE_URL={shlex.quote(base)}")
    if spec.api_key_file:
        key = f"grep -v -e '^#' -e '^$' {shlex.quote(spec.api_key_file)} | head -n 1"
        print(f'export OPENAI_API_KEY="$({key})"')
    else:
        print("export OPENAI_API_KEY=none")  # clients insist on one; this server does not
    print(f"export OPENAI_MODEL={shlex.quote(model)}")


def _running(name: str) -> tuple[LaunchSpec, str]:
    """The launch of a running instance and where it serves. Raises NotRunning."""
    from launcher.cli.instances import running
    from launcher.errors import NotRunning

    instance = running(name)
    url = instance.status().get("url")
    if not isinstance(url, str):
        raise NotRunning(f"{instance.name} serves nowhere yet", help=f"`kvlaunch status {instance.name}` says why")
    return instance.spec(), url


def _client(url: str, spec: LaunchSpec) -> httpx.Client:
    import httpx

    from launcher.keyfile import first_key

    headers = {}
    if key := first_key(spec.api_key_file):
        headers["Authorization"] = f"Bearer {key}"
    # trust_env off: a proxy that the environment names has no business with a server on this machine
    if url.startswith("unix:"):
        transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
        return httpx.Client(base_url="http://localhost", transport=transport, headers=headers, timeout=_PATIENCE)
    return httpx.Client(base_url=url, headers=headers, timeout=_PATIENCE, trust_env=False)


def _pieces(answer: httpx.Response) -> Iterator[str]:
    """The text of a streamed answer, piece by piece (server-sent events of the chat completions route)."""
    for line in answer.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            yield delta.get("content") or delta.get("reasoning_content") or ""


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
