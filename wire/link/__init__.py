"""Links over sockets: dial, accept, keep alive, reconnect; who may link, and under which addresses."""
