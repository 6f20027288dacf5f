"""The operating system and the event loop: files, locks, processes, memory, tasks."""
