"""The daemon: the shell that performs what worker/state decides, with sockets, stores and processes."""
