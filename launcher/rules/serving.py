"""KV7xx: who can reach the server, and with what secret."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.diagnostic import Severity
from launcher.rules.arguments import split_arguments
from launcher.rules.case import Case
from launcher.rules.facts import everywhere, loopback
from launcher.rules.rule import Act, Example, Found, rule, rules_of

_MODEL = '[model]\npath = "model.gguf"\n'
_SOCKET_LIMIT = 107  # man 7 unix
_TOOLS = ("--tools", "--agent", "--ui-mcp-proxy", "--mcp-servers-config", "--mcp-servers-json")


@rule(
    "KV701",
    "open-to-all",
    Severity.ERROR,
    Act.OURS,
    why="Whoever reaches the port can read every answer, use the machine, and on /slots and /metrics watch others "
    "(kvlaunch's promise: no listening on all interfaces without a key).",
    cost="The server belongs to anybody on the network.",
    help='write api_key_file = "~/.config/kvlaunch/keys" (one key a line), or host = "127.0.0.1"',
    example=Example(_MODEL + '[serve]\nhost = "0.0.0.0"\n'),
    counter=Example(_MODEL + '[serve]\nhost = "0.0.0.0"\napi_key_file = "keys"\n'),
)
def open_to_all(case: Case) -> Iterator[Found]:
    serve = case.profile.serve
    if serve.api_key_file is None:
        for host in serve.host:
            if everywhere(host):
                yield Found("serve.host", f"{host} listens on all interfaces, and no key is asked for")


@rule(
    "KV702",
    "reachable-without-key",
    Severity.WARNING,
    Act.OURS,
    why="The address is not this machine's own loopback: others on that network can use the server.",
    cost="Others can read answers and use the machine.",
    help='write api_key_file = "~/.config/kvlaunch/keys" (one key a line)',
    example=Example(_MODEL + '[serve]\nhost = "192.168.1.20"\n'),
    counter=Example(_MODEL + '[serve]\nhost = "127.0.0.1"\n'),
)
def reachable_without_key(case: Case) -> Iterator[Found]:
    serve = case.profile.serve
    if serve.api_key_file is None:
        for host in serve.host:
            if not loopback(host) and not everywhere(host):
                yield Found("serve.host", f"{host} can be reached from other machines, and no key is asked for")


@rule(
    "KV703",
    "key-on-command-line",
    Severity.ERROR,
    Act.OURS,
    why="Every user of the machine can read another process's command line (/proc/PID/cmdline).",
    cost="The key is no secret.",
    help='write the key into a file: api_key_file = "~/.config/kvlaunch/keys" under [serve]',
    example=Example(_MODEL + '[engine]\nargs = ["--api-key", "secret"]\n'),
    counter=Example(_MODEL + '[serve]\napi_key_file = "keys"\n'),
)
def key_on_command_line(case: Case) -> Iterator[Found]:
    for argument in split_arguments(case.profile.engine.args, case.capability):
        if argument.is_any("--api-key", "--hf-token", "-hft"):
            yield Found(f"engine.args.{argument.index}", f"{argument.flag} puts a secret on the command line")


@rule(
    "KV704",
    "tools-in-public",
    Severity.ERROR,
    Act.OURS,
    why="Built-in tools run commands and read files as the server's user; the engine's own help says `do not enable in "
    "untrusted environments`.",
    cost="Whoever reaches the port can run commands on this machine.",
    help="serve on 127.0.0.1 alone, or leave the tools away",
    example=Example(_MODEL + '[serve]\nhost = "10.0.0.5"\napi_key_file = "keys"\n[engine]\nargs = ["--agent"]\n'),
    counter=Example(_MODEL + '[engine]\nargs = ["--agent"]\n'),
)
def tools_in_public(case: Case) -> Iterator[Found]:
    public = [host for host in case.profile.serve.host if not loopback(host)]
    if not public:
        return
    for argument in split_arguments(case.profile.engine.args, case.capability):
        if argument.is_any(*_TOOLS) and not argument.flag.startswith("--no-"):
            yield Found(f"engine.args.{argument.index}", f"{argument.flag} gives {public[0]} tools of this machine")


@rule(
    "KV705",
    "cors-for-all-with-credentials",
    Severity.ERROR,
    Act.OURS,
    why="With credentials and any origin, every web page that a user of this server opens can talk to it as that user.",
    cost="A web page reads and asks whatever its visitor can.",
    help="name the origins: --cors-origins https://chat.example",
    example=Example(_MODEL + '[engine]\nargs = ["--cors-credentials", "--cors-origins", "*"]\n'),
    counter=Example(_MODEL + '[engine]\nargs = ["--cors-credentials", "--cors-origins", "https://a.example"]\n'),
)
def cors_for_all_with_credentials(case: Case) -> Iterator[Found]:
    arguments = list(split_arguments(case.profile.engine.args, case.capability))
    origins = next((a.value for a in reversed(arguments) if a.is_any("--cors-origins")), "*")
    for argument in arguments:
        if argument.flag.replace("_", "-") == "--cors-credentials" and "*" in (origins or ""):
            yield Found(f"engine.args.{argument.index}", "credentials are given to any origin")


@rule(
    "KV706",
    "free-port-for-several",
    Severity.ERROR,
    Act.REFUSE,
    why="A free port is chosen for one address; with several TCP hosts the engine refuses port 0 "
    "(tools/server/server-http.cpp:135).",
    cost="It does not start.",
    help="write a port",
    example=Example(_MODEL + '[serve]\nhost = ["127.0.0.1", "::1"]\nport = 0\n'),
    counter=Example(_MODEL + '[serve]\nhost = ["127.0.0.1", "run/kv.sock"]\nport = 0\n'),
)
def free_port_for_several(case: Case) -> Iterator[Found]:
    serve = case.profile.serve
    tcp = [host for host in serve.host if not host.endswith(".sock")]
    if serve.port == 0 and len(tcp) > 1:
        yield Found("serve.port", f"port = 0 on {len(tcp)} addresses")


@rule(
    "KV707",
    "socket-path-too-long",
    Severity.ERROR,
    Act.REFUSE,
    why="The kernel takes 107 bytes for the path of a unix socket (man 7 unix).",
    cost="It does not start.",
    help="choose a shorter path",
    example=Example(_MODEL + f'[serve]\nhost = "/run/{"x" * 103}.sock"\n'),
    counter=Example(_MODEL + '[serve]\nhost = "/run/kv.sock"\n'),
)
def socket_path_too_long(case: Case) -> Iterator[Found]:
    for host in case.profile.serve.host:
        if host.endswith(".sock") and len(host.encode()) > _SOCKET_LIMIT:
            yield Found("serve.host", f"the socket's path has {len(host.encode())} bytes")


@rule(
    "KV708",
    "host-twice",
    Severity.ERROR,
    Act.REFUSE,
    why="The second listener finds the port taken, by the first (tools/server/server-http.cpp:517).",
    cost="It does not start.",
    help="write each address once",
    example=Example(_MODEL + '[serve]\nhost = ["127.0.0.1", "127.0.0.1"]\n'),
    counter=Example(_MODEL + '[serve]\nhost = ["127.0.0.1", "::1"]\n'),
)
def host_twice(case: Case) -> Iterator[Found]:
    hosts = case.profile.serve.host
    for index, host in enumerate(hosts):
        if host in hosts[:index]:
            yield Found(f"serve.host.{index}", f"{host} is named twice")
    if "0.0.0.0" in hosts and any(not everywhere(h) and "." in h and not h.endswith(".sock") for h in hosts):
        yield Found("serve.host", "0.0.0.0 is every address already, the others find the port taken")


@rule(
    "KV709",
    "keys-for-all-eyes",
    Severity.WARNING,
    Act.OURS,
    why="A key that others can read is no secret.",
    cost="Any user of the machine can use the server.",
    help="chmod 600 the file",
    example=Example(_MODEL + '[serve]\napi_key_file = "keys"\n', ("a key file that others may read",)),
    counter=Example(_MODEL + '[serve]\napi_key_file = "keys"\n'),
)
def keys_for_all_eyes(case: Case) -> Iterator[Found]:
    for key in sorted(case.files.loose):
        yield Found(key, f"others may read {case.profile.serve.api_key_file}")


@rule(
    "KV710",
    "no-key-in-file",
    Severity.ERROR,
    Act.CHANGE,
    why="A key file without a key asks nobody for one (common/arg.cpp, --api-key-file).",
    cost="The server is open, though a key file is named.",
    help="write one key a line",
    example=Example(_MODEL + '[serve]\napi_key_file = "keys"\n', ("a key file without a key",)),
    counter=Example(_MODEL + '[serve]\napi_key_file = "keys"\n'),
)
def no_key_in_file(case: Case) -> Iterator[Found]:
    for key in sorted(case.files.empty):
        yield Found(key, f"{case.profile.serve.api_key_file} holds no key")


@rule(
    "KV711",
    "low-port",
    Severity.WARNING,
    Act.REFUSE,
    why="Ports below 1024 are for root, or for who was granted CAP_NET_BIND_SERVICE.",
    cost="The engine may not be allowed to listen.",
    help="write a port from 1024 on, and let a reverse proxy serve the low one",
    example=Example(_MODEL + "[serve]\nport = 80\n"),
    counter=Example(_MODEL + "[serve]\nport = 8080\n"),
)
def low_port(case: Case) -> Iterator[Found]:
    if 0 < case.profile.serve.port < 1024:
        yield Found("serve.port", f"port {case.profile.serve.port} is for privileged users")


@rule(
    "KV712",
    "address-not-here",
    Severity.ERROR,
    Act.REFUSE,
    why="A listener can only be bound to an address that one of this machine's interfaces has.",
    cost="It does not start.",
    help='`ip -brief address` lists them; "127.0.0.1" is this machine alone, "0.0.0.0" all of them (with a key)',
    example=Example(_MODEL + '[serve]\nhost = "203.0.113.7"\n', ("an address of another machine",)),
    counter=Example(_MODEL + '[serve]\nhost = "127.0.0.1"\n'),
)
def address_not_here(case: Case) -> Iterator[Found]:
    for index, why in case.files.hosts.items():
        yield Found(f"serve.host.{index}", f"{case.profile.serve.host[index]} {why}")


RULES = rules_of(globals())
