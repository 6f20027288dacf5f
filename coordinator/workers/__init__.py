"""Workers as the coordinator sees them: health, links, stragglers, and reports of them."""
