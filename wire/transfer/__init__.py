"""Bytes over a link: content by its address, relays, and probes of the link itself."""
