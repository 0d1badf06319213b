"""HTTP routes: parse the request, call one service function, return the result."""
