"""Keys, certificates, TLS, and limits on callers."""
