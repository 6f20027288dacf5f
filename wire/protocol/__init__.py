"""The protocol without I/O: frames, messages, flow control, and the peer that speaks them."""
