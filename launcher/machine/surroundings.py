"""What kind of place this is: a container, WSL, which kernel."""

from __future__ import annotations

from launcher.machine.tree import Tree


def is_wsl(tree: Tree) -> bool:
    """Windows' Linux: its kernel says so. GPUs then come through /dev/dxg, without a PCI tree."""
    return "microsoft" in (kernel(tree) or "").lower()


def kernel(tree: Tree) -> str | None:
    """The kernel's release. Some sandboxes hide /proc/sys."""
    if release := tree.line("/proc/sys/kernel/osrelease"):
        return release
    words = (tree.line("/proc/version") or "").split()
    return words[2] if len(words) > 2 and words[:2] == ["Linux", "version"] else None


def container(tree: Tree) -> str | None:
    """The container's manager, by the marks that they leave; None where there is none or it doesn't show."""
    if manager := tree.line("/run/systemd/container") or tree.line("/run/host/container-manager"):
        return manager
    if tree.exists("/run/.containerenv"):
        return "podman"
    if "kubepods" in (tree.text("/proc/self/cgroup") or ""):
        return "kubernetes"
    return "docker" if tree.exists("/.dockerenv") else None
