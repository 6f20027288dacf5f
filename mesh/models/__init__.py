"""Models: what importers make, how files of them are found and read."""
