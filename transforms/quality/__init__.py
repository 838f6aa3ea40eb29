"""How well a chain keeps the geometry of the vectors: metrics, diagnostics, certificate."""
