"""The client: Mesh and AsyncMesh, sessions, previews of plans, reports."""
