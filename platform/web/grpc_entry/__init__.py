"""The gRPC API beside HTTP: the same pipeline, keys and quotas, by the messages of its proto file.

grpcio is imported only where a port is named. Seam: `serving_grpc`, `check_grpc`.
"""
