"""What this box has: devices, links, memory under cgroup limits, CPU features."""
