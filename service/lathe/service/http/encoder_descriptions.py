"""The served encoders as `/encoders` and `/info` describe them."""

from typing import Any

from lathe.service.services import Services


def describe_encoders(services: Services) -> list[dict[str, Any]]:
    """Describe each served encoder: name, model, state, and what is wrong, if that is known.

    Once it was ready, also its properties, its number of ready workers, and the chains that answer requests for fewer
    dimensions: `size_routes` by number of dimensions, and `nested` for the numbers that have none.
    """
    size_routes = services.registry.size_routes.read()
    descriptions = []
    for engine in services.embedder.engines.values():
        description: dict[str, Any] = {"name": engine.spec.name, "model": engine.spec.model, "state": engine.state}
        description["idle_seconds"] = engine.unload_seconds
        if engine.info is not None:
            own_routes = dict(size_routes.get(engine.info.fingerprint, {}))
            description |= engine.info.describe() | {
                "workers": len(engine.ready_dispatchers),
                "nested": own_routes.pop("nested", None),
                "size_routes": own_routes,
            }
        problem = engine.problem or engine.find_warning()
        descriptions.append(description | ({"problem": problem} if problem else {}))
    return descriptions
