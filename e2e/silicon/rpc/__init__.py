"""The kubelet's gRPC APIs: generated messages, and the method tables that grpcio needs."""
