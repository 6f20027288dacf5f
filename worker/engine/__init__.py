"""What all engines share: the Engine protocol, the messages of engine hosts, donated buffers."""
