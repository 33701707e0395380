"""Where the pure cores meet sockets, threads and the clock."""
