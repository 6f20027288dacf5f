"""What a mesh runs on: embedded, remote and local coordinators and workers, and how they are joined."""
