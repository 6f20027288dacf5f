"""Keys, certificates, TLS, and the exchange by which a node joins a mesh."""
