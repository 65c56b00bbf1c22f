"""GGUF header in, ModelShape out; no weights are read. Also where model files come from."""
