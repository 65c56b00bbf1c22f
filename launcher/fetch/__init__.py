"""Files from the package index that pip or uv is set up with: find, download (resumable), verify, keep."""
