"""serving_grpc: the port, the methods behind it, and the standard health service."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from ..adapters.engine_door import require_ready
from ..http.errors import ApiError
from ..state import State
from .messages import SERVICE, message
from .servicer import Servicer, refusing

HEALTH_SECONDS: Final = 1.0


@contextlib.asynccontextmanager
async def serving_grpc(state: State) -> AsyncIterator[int | None]:
    """Serve it while the block lasts, at this port; None: no port is named. ValueError where it cannot be had."""
    settings = state.settings
    if settings.grpc_port is None:
        yield None
        return
    import grpc.aio
    from grpc_health.v1 import health_pb2_grpc
    from grpc_health.v1._async import HealthServicer

    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", int(settings.max_body_bytes)),
            ("grpc.so_reuseport", 0),
        ]
    )
    server.add_generic_rpc_handlers((_handlers(state),))
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError:
        raise ValueError(f"grpc_port {settings.grpc_port} on {settings.host} cannot be had. Choose another") from None
    await server.start()
    telling = asyncio.create_task(_tell_health(state, health))
    try:
        yield port
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        await server.stop(settings.drain_seconds)


def _handlers(state: State) -> Any:
    import grpc

    servicer = Servicer(state)
    # A format's events are messages in bytes already.
    methods = {
        "Generate": grpc.unary_stream_rpc_method_handler(
            servicer.generate, request_deserializer=message("GenerateRequest").FromString
        )
    }
    unary = {
        "Embed": (servicer.embed, "EmbedRequest"),
        "Abort": (servicer.abort, "AbortRequest"),
        "GetModelInfo": (servicer.get_model_info, "GetModelInfoRequest"),
    }
    for name, (method, request) in unary.items():
        methods[name] = grpc.unary_unary_rpc_method_handler(
            refusing(method),
            request_deserializer=message(request).FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
    return grpc.method_handlers_generic_handler(SERVICE, methods)


async def _tell_health(state: State, health: Any) -> None:
    """Serving while the engine is ready and the server does not stop."""
    from grpc_health.v1 import health_pb2

    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    while True:
        status = serving if _is_ready(state) else not_serving
        for service in ("", SERVICE):
            await health.set(service, status)
        await asyncio.sleep(HEALTH_SECONDS)


def _is_ready(state: State) -> bool:
    try:
        require_ready(state.engine)
    except ApiError:
        return False
    return not state.stopping.is_set()
