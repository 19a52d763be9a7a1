"""Stand-ins for NVIDIA's node software, so that a machine without a GPU can be dressed as a GPU node."""
