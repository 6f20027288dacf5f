"""What is known of workers: health, links, stragglers, and the views of them that people get."""
